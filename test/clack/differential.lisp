(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; The same application, served by us and, in processes of their own, by Woo and by Clack's
;;;; handler for Hunchentoot, where ASDF finds them: what it is told, and what its clients get, may
;;;; differ only as differences.sexp has it, and each difference that this has must be there.

(def-suite clack-differential :in clack
  :description "What others make of the same applications of Clack's.")

(in-suite clack-differential)

(defparameter *rivals*
  '((:woo "woo" "CLACK.HANDLER.WOO")
    (:hunchentoot "clack-handler-hunchentoot" "CLACK.HANDLER.HUNCHENTOOT"))
  "Keys, systems and packages.")

;;; The table

(defun clack-differences ()
  "The entries of differences.sexp, plists.
  :NAME          what differs
  :OURS :THEIRS  what we do, and what others do, for people
  :WHY           the reason
  :AT            where it is seen: a list of lists of the keys of rivals, the names of requests, and
                facts"
  (read-table "clack/differences.sexp"))

(defun all-places ()
  "All that entries have as :AT."
  (loop for entry in (clack-differences) append (getf entry :at)))

(defun place-of-difference (places rival request fact)
  "The one of PLACES that tells that we differ from RIVAL at REQUEST in FACT; NIL where there is
none."
  (loop for place in places
        for (rivals requests . facts) = place
        when (and (member rival rivals) (member request requests)
                  (member fact facts :test #'string=))
          return place))

;;; Facts

(defun environment-facts (text)
  "An alist of the lines of TEXT."
  (loop for line in (uiop:split-string text :separator '(#\Newline))
        for colon = (search ": " line)
        when colon
          collect (cons (subseq line 0 colon) (subseq line (+ 2 colon)))))

(defun body-fact (octets)
  "What there is to be said of OCTETS, a body."
  (if (< (length octets) 1000)
      (handler-case (decode octets)
        (error () octets))
      (list (length octets)
            (reduce (lambda (sum octet) (mod (+ (* 31 sum) octet) 1000003)) octets))))

(defun framing-fact (response)
  "By what a client knows the end of RESPONSE."
  (cond ((response-header response "transfer-encoding"))
        ((response-header response "content-length"))))

(defun field-facts (response)
  "An alist of the fields of RESPONSE, but for those that tell of the server and the connection."
  (let ((names (remove-duplicates (mapcar #'car (response-headers response)) :test #'string=)))
    (loop for name in names
          unless (member name '("date" "server" "connection" "keep-alive" "content-length"
                                "transfer-encoding")
                         :test #'string=)
            collect (cons (format nil "reply ~A" name) (response-header-values response name)))))

(defun reply-facts (response)
  "An alist of what RESPONSE says."
  (let ((facts (list* (cons "status" (response-status response))
                      (cons "framing" (framing-fact response))
                      (cons "date" (and (response-header response "date") t))
                      (field-facts response)))
        (body (response-body response)))
    (if (search (octets "request-method: ") body)
        (append (environment-facts (decode body))
                (remove "framing" facts :key #'car :test #'string=))
        (acons "body" (body-fact body) facts))))

(defun afterwards (connection)
  "What becomes of CONNECTION after a reply: :KEPT, :CLOSED, or :SILENT, where there is no reply any
more."
  (handler-case (if (= 200 (response-status (exchange connection "/list")))
                    :kept
                    :closed)
    (patience-lost () :silent)
    (error () :closed)))

(defun facts-by (port target &rest keys)
  "The facts of the answer of who serves PORT to a request for TARGET, made of KEYS."
  (with-connection (connection port)
    (let ((facts (handler-case (reply-facts (apply #'exchange connection target
                                                   (append keys '(:host "localhost:4242"))))
                   (patience-lost () '(("status" . :silent)))
                   (error () '(("status" . :closed))))))
      (acons "connection" (afterwards connection) facts))))

;;; Comparison

(defun facts-to-compare (ours theirs)
  "The names of the facts of OURS and THEIRS, alists, that can be compared: where the status is
another, all else is, too, but for what becomes of the connection."
  (if (equal (fact "status" ours) (fact "status" theirs))
      (remove-duplicates (mapcar #'car (append ours theirs)) :test #'string= :from-end t)
      '("status" "connection")))

(defun differing-facts (ours theirs)
  "The facts of OURS and THEIRS, alists, that differ: lists of name and both values."
  (loop for name in (facts-to-compare ours theirs)
        for our = (fact name ours)
        for their = (fact name theirs)
        unless (equalp our their)
          collect (list name our their)))

(defun differences-at (port request)
  "In what our answer to REQUEST differs from that of who serves PORT, as DIFFERING-FACTS has it."
  (destructuring-bind (target &rest keys) (rest request)
    (differing-facts (apply #'facts-by (port-of *server*) target keys)
                     (apply #'facts-by port target keys))))

(defun check-difference (places rival request fact ours theirs)
  "Checks that one of PLACES tells of a difference; returns that."
  (let ((place (place-of-difference places rival request fact)))
    (is-true place "~A, ~A: ~A is ~S with us, and ~S with them." rival request fact ours theirs)
    place))

(defun compare-with-rival (rival port)
  "Checks that RIVAL, on PORT, does what our server does, but for known differences, and that these
are there."
  (let* ((places (all-places))
         (*patience* 3)
         (seen (loop for request in (rival-requests)
                     append (loop for (fact ours theirs) in (differences-at port request)
                                  collect (check-difference places rival (first request) fact ours
                                                            theirs)))))
    (dolist (place places)
      (when (member rival (first place))
        (is-true (member place seen) "~A does not differ at ~{~A~^, ~}." rival (second place))))))

;;; Rivals

(defun rival-program (system package port)
  "A program that serves the application on PORT by the handler in PACKAGE, of SYSTEM."
  (format nil "(asdf:load-system ~S)~%(load ~S)~%(funcall (find-symbol \"RUN\" ~S) ~
                (find-symbol \"APP\" \"RECYCLING-RIVAL-APPLICATION\") ~
                :address \"127.0.0.1\" :port ~D :debug nil)~%"
          system (project-file "test/clack/rival-application.lisp") package port))

(defun call-with-rival (system package function)
  "Calls FUNCTION with the port on which the handler in PACKAGE, of SYSTEM, serves the application."
  (let ((port (free-port)))
    (call-with-command
     (lambda (program)
       (eventually ("another server to start" :patience 120)
         (or (listening-p port) (not (program-runs-p program))))
       (if (program-runs-p program)
           (funcall function port)
           (skip "~A cannot be loaded here." system)))
     (lambda (directory)
       (list (project-file "scripts/lisp")
             (uiop:native-namestring (write-file directory "rival.lisp"
                                                 (rival-program system package port))))))))

(define-server-test others-do-the-same-but-for-known-differences
  (load (project-file "test/clack/rival-application.lisp"))
  (loop for (rival system package) in *rivals*
        do (if (and (uiop:featurep :sbcl) (asdf:find-system system nil))
               (call-with-clack (find-symbol "APP" '#:recycling-rival-application) '()
                                (lambda ()
                                  (call-with-rival system package
                                                   (lambda (port)
                                                     (compare-with-rival rival port)))))
               (skip "ASDF does not find ~A." system))))

;;; The table

(test every-difference-of-clack-handlers-is-whole
  (dolist (entry (clack-differences))
    (dolist (key '(:name :theirs :ours :why))
      (is (plusp (length (getf entry key))) "~S has no ~S." (getf entry :name) key))
    (is-true (getf entry :at)))
  (loop for (rivals requests . facts) in (all-places)
        do (is (subsetp rivals (mapcar #'first *rivals*)))
           (is (subsetp requests (mapcar #'first (rival-requests))))
           (is-true facts)))
