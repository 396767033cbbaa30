(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* fronts/verdicts :in fronts
  :description
  "What the vectors promise of octets holds of connections, in all modes, and over TLS.")

;;; A verdict is a list: what becomes of the connection, :KEPT or :CLOSED, and before that, for each
;;; final answer, its status, and with 200 the text in which the handler tells what request it has
;;; seen.

;;; What is promised

(defparameter *verdict-probe* "/?"
  "The target of the request that tells whether a connection is kept.")

(defun told-request (method uri body)
  "What the handler tells of a request."
  (format nil "~A ~A ~A" method uri body))

(defun refusal-of-method (method)
  "The status with which *FRONT* refuses METHOD, a keyword or a string; NIL where it serves that."
  (cond ((eq :connect method) 501)
        ((eq :clack *front*) (unless (keywordp method) 501))))

(defun request-verdict (request)
  "The answer to REQUEST, the plist of an event, and whether the connection is kept then."
  (let* ((method (getf request :method))
         (refusal (refusal-of-method method)))
    (cond (refusal
           (values (list refusal) nil))
          (t
           (values (list 200 (if (eq :head method)
                                 ""
                                 (told-request method (getf request :uri) (getf request :body))))
                   (getf request :keep-alive))))))

(defun last-verdict (event)
  "The answers to what EVENT, the last of a conversation, tells, and whether the connection is
kept."
  (destructuring-bind (kind what &rest details) event
    (declare (ignore details))
    (if (eq :refused kind)
        (values (list (list what)) nil)
        (values '() (eq :request what)))))

(defun events-verdict (events)
  "The verdict that EVENTS of a conversation lead to, when what the client sends ends with them."
  (loop with answers = '()
        for event in events
        do (if (eq :request (first event))
               (multiple-value-bind (answer kept-p) (request-verdict (rest event))
                 (push answer answers)
                 (unless kept-p
                   (return (list :closed (reverse answers)))))
               (multiple-value-bind (last kept-p) (last-verdict event)
                 (return (list (if kept-p :kept :closed)
                               (append (reverse answers) last)))))))

(defun heads-asked-for (events)
  "For each request among EVENTS whether it is by HEAD."
  (loop for event in events
        for request = (if (eq :request (first event)) (rest event) (fourth event))
        when request
          collect (eq :head (getf request :method))))

;;; What happens

(defgeneric method-and-uri (request)
  (:method ((request list))
    (list (getf request :request-method) (getf request :request-uri)))
  (:method ((request hunchentoot:request))
    (list (hunchentoot:request-method request) (hunchentoot:request-uri request))))

(defun verdict-reply (request)
  "Tells what REQUEST has come."
  (destructuring-bind (method uri) (method-and-uri request)
    (reply 200 '(:content-type "text/plain; charset=iso-8859-1")
           (encode (told-request method uri (octet-text (content request))) :latin-1))))

(defun next-final-answer (connection head-p)
  "The next answer from CONNECTION, a list as in a verdict; interim ones are passed over."
  (loop for response = (read-response connection :head head-p)
        for status = (response-status response)
        unless (= 100 status)
          return (if (= 200 status) (list status (response-text response)) (list status))))

(defun observed-verdict (connection heads)
  "The verdict that comes from CONNECTION, which sends no more; HEADS tells which requests are by
HEAD."
  (let ((answers '()) (probe (list 200 (told-request :get *verdict-probe* ""))))
    (handler-case (loop (push (next-final-answer connection (pop heads)) answers))
      (broken-response (condition)
        (unless (search "has ended" (princ-to-string condition))
          (push (princ-to-string condition) answers))))
    (if (equal probe (first answers))
        (list :kept (reverse (rest answers)))
        (list :closed (reverse answers)))))

(defun vector-verdict (octets events piece)
  "The verdict of *SERVER* on OCTETS, which are EVENTS, sent PIECE octets at a time."
  (with-connection (connection)
    (setf (usocket:socket-option (connection-socket connection) :tcp-nodelay) t)
    ;; Who is refused may find the connection closed before all is sent.
    (ignore-errors (send-in-pieces connection piece octets))
    (ignore-errors
     (if (eq :closed (first (events-verdict events)))
         (end-sending connection)
         ;; The shortest one, which all limits allow, and the last.
         (send-request connection *verdict-probe* :version "HTTP/1.0" :host nil)))
    (observed-verdict connection (heads-asked-for events))))

;;; Which vectors

(defun arguments-for-limits (vector)
  "The arguments of a server with the limits of VECTOR."
  (loop for (key value) on (append (getf vector :limits)
                                   '(:header-octets 32768)) ; Clack's has others
          by #'cddr
        collect (intern (format nil "MAX-~A" key) '#:keyword)
        collect value))

(defun unservable-p (vector)
  "Whether VECTOR needs what this Lisp, or Clack's front, does not have."
  (or (and (getf vector :needs) (unmet-need (getf vector :needs)))
      (and (getf vector :served) (eq :clack *front*))))

(defun vectors-by-limits ()
  "Lists of arguments of a server and the vectors for it."
  (let ((groups '()))
    (dolist (file *vector-files* (reverse groups))
      (dolist (vector (remove-if #'unservable-p (read-vectors file)))
        (let* ((limits (arguments-for-limits vector))
               (group (assoc limits groups :test #'equal)))
          (if group
              (setf (cdr group) (append (cdr group) (list vector)))
              (push (list limits vector) groups)))))))

(defun check-verdict (vector)
  "Checks that *SERVER* judges the octets of VECTOR as the parser does, however they arrive."
  (let* ((octets (vector-octets vector))
         (events (events-whole octets (vector-limits vector)))
         (promised (or (getf vector :served) (events-verdict events))))
    (dolist (piece (if (< (length octets) 300) (list 1 300) (list (length octets))))
      (let ((verdict (handler-case (vector-verdict octets events piece)
                       (patience-lost () :hung))))
        (is (equal promised verdict) "~A, in pieces of ~D: ~A, not ~A"
            (getf vector :name) piece (abbreviated verdict) (abbreviated promised))))))

(define-front-test (connections-are-judged-as-the-parser-does :modes (:plain :unparked :tls)
                                                              :needs :our-reader)
  (with-globals ((platform::*discard-pause* 2)) ; a client of the tests may be slow
    (loop for (arguments . vectors) in (vectors-by-limits)
          do (call-with-front-in-mode #'verdict-reply arguments
                                      (lambda ()
                                        (mapc #'check-verdict
                                              (sample-on-slow-lisps vectors 3)))))))
