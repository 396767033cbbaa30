(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The content of the next request of a connection: making it, receiving it early (see
;;;; body-prefetch.lisp), and dropping its rest.

(defun pace-content (application http)
  "Applies the least rate for content of APPLICATION to reading from HTTP."
  (let ((limits (application-limits application)))
    (pace-io (http-io http) (limits-content-rate limits) (limits-content-grace limits))))

(defun no-content (http)
  "The content, a stream, of a request over HTTP without content.  This also holds for a request for
another protocol: until that is granted, the octets that follow are the next request."
  (pace-io (http-io http) nil nil)
  *no-content*)

(defun make-content (application http head &optional invite)
  "The content, a stream, of the request HEAD to APPLICATION, which follows on HTTP.  INVITE, a
function or NIL, asks the client for it."
  (let ((framing (head-framing head))
        (io (http-io http)))
    (if (content-to-come-p http head)
        (pace-content application http)
        (pace-io io nil nil))
    (flet ((turn-down (refusal)
             ;; A reader in another thread has no handler that could be left, or that of another
             ;; request.
             (when (and *exchange* (eq http (exchange-http *exchange*)))
               (content-refused application refusal))))
      (let* ((limits (application-limits application))
             (content (if (eq :chunked framing)
                          (make-chunked-content io limits #'turn-down invite)
                          (make-content-stream (io-stream io) framing #'turn-down invite))))
        (unless (eq content *no-content*)
          (setf (content-limits content) limits))
        content))))

(defun invitation (exchange announce)
  "A function that asks the client of EXCHANGE for its content, unless a reply has begun; NIL where
the client does not wait for that (RFC 9110, section 10.1.1).  ANNOUNCE is as in TAKE-CONTENT."
  (when (head-expect-100-continue-p (exchange-head exchange))
    (lambda ()
      (when (and (eq :idle (our-side (exchange-protocol exchange)))
                 (or (null announce) (funcall announce)))
        (note-event exchange :continue)
        (send-continue (http-io (exchange-http exchange)))))))

(defun take-content (application exchange &optional announce)
  "The content of the request of EXCHANGE to APPLICATION, a stream, whether received early or not.
ANNOUNCE, a function without arguments or NIL, is called before 100 (Continue) is sent; if it
returns NIL, 100 is not sent."
  (let ((http (exchange-http exchange))
        (head (exchange-head exchange)))
    (setf (exchange-content exchange)
          (cond ((eq :none (head-framing head)) (no-content http))
                ((http-content http))
                (t (make-content application http head (invitation exchange announce)))))))

(defparameter *unasked-limit* (* 64 1024 1024)
  "How many octets of unread content are dropped before the reply is sent, or kept for threads that
answer later.  If more are announced, none is: the reply is sent at once, and the connection is
closed.")

(defun too-much-to-come-p (content)
  "True when so much of CONTENT has yet to come that the server does not receive it unless the
program reads it."
  (let ((awaited (content-awaited content)))
    (and awaited (> awaited *unasked-limit*))))

(defparameter *unread-limit* (* 256 1024)
  "How many octets of unread content are dropped after the reply in order to keep the connection.
If there are more, the connection is closed.")

(defun drop-rest (application http content)
  "Drops the unread rest of CONTENT, which came over HTTP for APPLICATION; NIL where it is too long,
late, or cut off."
  (prog1 (or (and (null (content-failure content)) (all-received-p content))
             (progn (pace-content application http) ; its reader may have set another
                    (handler-case (drop-content content *unread-limit*)
                      (end-of-file () nil))))
    (pace-io (http-io http) nil nil)))

(defun end-content (application exchange taken-p)
  "Drops the rest of the content of the request of EXCHANGE to APPLICATION, unless TAKEN-P, which
says that a program has taken the connection away."
  (let ((http (exchange-http exchange))
        (content (exchange-content exchange)))
    (when (member (client-side (exchange-protocol exchange)) '(:body :held))
      (note-event exchange (if (and (not taken-p)
                                    (drop-rest application http content))
                               :request-end
                               :request-fault))
      (give-up-place content))          ; the reply may come much later
    (setf (http-phase http)
          (if (last-request-read-p (exchange-protocol exchange)) :over :requests))))

;;; Receiving content early

(defun content-to-come-p (http head)
  "True when the request HEAD has content, and not all of it is in the input buffer of HTTP."
  (let ((framing (head-framing head))
        (io (http-io http)))
    (case framing
      (:none nil)
      (:chunked t)
      (t (> framing (- (io-end io) (io-start io)))))))

(defun octets-received-early (application head)
  "How many octets of the content of the request HEAD, which has some, are received before
APPLICATION answers; 0 for none."
  (if (head-expect-100-continue-p head)
      0
      (early-octets application head)))

(defmacro or-abandoned ((http) &body body)
  "Evaluates BODY, which receives content over HTTP; returns :END where the connection is broken."
  `(handler-case (progn ,@body)
     (descriptor-broken ()
       (abandon-body-prefetch ,http)
       :end)))

(defun whole-request (application connection http)
  "Like WAITING-REQUEST, but returns :NONE until the part of the content that is received early has
come, too."
  (cond ((http-body-prefetch http)
         (if (head-expect-100-continue-p (body-prefetch-head (http-body-prefetch http)))
             (held-request connection http)
             (or-abandoned (http) (received-request application connection http))))
        (t
         (abandon-body-prefetch http)   ; of a request that was not processed
         (let ((head (waiting-request application connection http)))
           (if (and (typep head 'head) (content-to-come-p http head))
               (let ((most (octets-received-early application head)))
                 (cond ((plusp most)
                        (or-abandoned (http)
                          (begin-body-prefetch application connection http head most)))
                       ((and (head-expect-100-continue-p head)
                             (waits-full-p (worker-engine *worker*)))
                        (setf (http-body-prefetch http)
                              (make-body-prefetch head (make-content application http head) 0))
                        (held-request connection http))
                       (t head)))
               head)))))

(defparameter *held-milliseconds* 250
  "How long a request whose client waits for 100 (Continue) is held while the largest allowed number
of threads wait for clients.")

(defun held-request (connection http)
  "The head of the request of CONNECTION over HTTP, whose client waits for 100 (Continue), after
*HELD-MILLISECONDS*; until then :NONE.  A thread would wait for this client, and another client
would be given up for it.  Otherwise, clients that stay silent after 100 (Continue), and come again,
would keep all threads busy."
  (let* ((body-prefetch (http-body-prefetch http))
         (end (+ (body-prefetch-began body-prefetch) *held-milliseconds*)))
    (cond ((and (< (milliseconds) end)
                (keep-waiting-input (worker-engine *worker*) http))
           (set-deadline-at connection :pause end)
           :none)
          (t
           (abandon-body-prefetch http)
           (body-prefetch-head body-prefetch)))))

(defun begin-body-prefetch (application connection http head most)
  "Begins to receive the content of the request HEAD over HTTP, at most MOST octets, before
APPLICATION answers.  Returns the same as WHOLE-REQUEST."
  (let ((content (make-content application http head)))
    (cond ((all-arrived-p content)
           (setf (http-content http) content)
           head)
          (t
           (setf (http-body-prefetch http) (make-body-prefetch head content most))
           (received-request application connection http)))))

(defun received-request (application connection http)
  "Receives content for the body prefetch of HTTP.  Returns the head of its request, :NONE when more
content is to come, or :END when it will not come.  Signals DESCRIPTOR-BROKEN."
  (let ((body-prefetch (http-body-prefetch http))
        (idle (as-milliseconds (read-seconds application))))
    (cond ((or (eq :all (receive-ahead body-prefetch (body-prefetch-most body-prefetch)))
               (take-place-after-pause body-prefetch idle))
           ;; At each moment HTTP has one of them, so that its release frees the memory.
           (setf (http-content http) (body-prefetch-content body-prefetch)
                 (http-body-prefetch http) nil)
           (release-input (http-io http))
           (body-prefetch-head body-prefetch))
          (t
           (await-rest application connection http body-prefetch idle)))))

(defun await-rest (application connection http body-prefetch idle)
  "Lets CONNECTION wait for the rest of BODY-PREFETCH over HTTP, and returns :NONE.  If it is late,
answers the request, and returns :END.  IDLE is for how many milliseconds no octets may come, or
NIL."
  (let* ((now (milliseconds))
         (deadline (body-prefetch-deadline body-prefetch (application-limits application) idle))
         (look (next-look body-prefetch idle now)))
    (cond ((and deadline (<= deadline now))
           (count-late (worker-engine *worker*) :body)
           (refuse-body-prefetch application http :request-timeout))
          ((not (keep-waiting-input (worker-engine *worker*) http))
           (refuse-body-prefetch application http :no-memory))
          (t
           (if (or (null deadline) (< look deadline))
               (set-deadline-at connection :pause look)
               (set-deadline-at connection :body deadline))
           :none))))

(defun refuse-body-prefetch (application http reason)
  "Answers the request whose content has come in part over HTTP with the refusal of REASON, a
keyword.  Returns :END."
  (send-refusal (http-io http) (reject-body-prefetch application http (make-refusal reason)))
  (abandon-body-prefetch http)
  :end)

(defun reject-body-prefetch (application http refusal)
  "Counts and logs the request whose content has come in part over HTTP.  Returns REFUSAL, the
reason."
  (let ((head (body-prefetch-head (http-body-prefetch http))))
    (note-rejected-head application http refusal head)
    refusal))
