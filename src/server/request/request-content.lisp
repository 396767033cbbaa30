(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The content of the next request of a connection: made, received before the request is answered
;;;; (see body-prefetch.lisp for when), and dropped.

(defun pace-content (application http)
  "Holds content that is read off HTTP to the least rate of APPLICATION."
  (let ((limits (application-limits application)))
    (pace-io (http-io http) (limits-content-rate limits) (limits-content-grace limits))))

(defun no-content (http)
  "The content, a stream, of a request over HTTP that has none, also where it asks for another
protocol: what follows is the next request until that was granted."
  (pace-io (http-io http) nil nil)
  *no-content*)

(defun make-content (application http head &optional invite)
  "The content of the request HEAD to APPLICATION, which follows on HTTP, a stream.  INVITE, a
function or NIL, tells the client to send it."
  (let ((framing (head-framing head))
        (io (http-io http)))
    (if (content-to-come-p http head)
        (pace-content application http)
        (pace-io io nil nil))
    (flet ((turn-down (refusal)
             ;; Others who read it have no handler that could be left, or one of another request.
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
  "A function that tells the client of EXCHANGE to send its content, unless it has a reply already;
NIL where the client does not wait for that (RFC 9110, section 10.1.1).  ANNOUNCE is as in
TAKE-CONTENT."
  (when (head-expect-100-continue-p (exchange-head exchange))
    (lambda ()
      (when (and (eq :idle (our-side (exchange-protocol exchange)))
                 (or (null announce) (funcall announce)))
        (note-event exchange :continue)
        (send-continue (http-io (exchange-http exchange)))))))

(defun take-content (application exchange &optional announce)
  "The content of the request of EXCHANGE to APPLICATION, which came before, or is to follow: a
stream.  ANNOUNCE, a function without arguments or NIL, is called before 100 (Continue) is sent, and
returns NIL where that is not to be."
  (let ((http (exchange-http exchange))
        (head (exchange-head exchange)))
    (setf (exchange-content exchange)
          (cond ((eq :none (head-framing head)) (no-content http))
                ((http-content http))
                (t (make-content application http head (invitation exchange announce)))))))

(defparameter *unasked-limit* (* 64 1024 1024)
  "How many octets of content that the program has not read are dropped before the reply is sent, or
kept for the threads that answer later.  Where more are announced, none is: the reply is sent at
once, and the connection is closed.")

(defun too-much-to-come-p (content)
  "True when more is announced of CONTENT, and has yet to come, than is taken for a program that has
not read it."
  (let ((awaited (content-awaited content)))
    (and awaited (> awaited *unasked-limit*))))

(defparameter *unread-limit* (* 256 1024)
  "How many octets of content that was not read to its end are dropped after the reply, for the sake
of keeping the connection; where there are more, it is closed.")

(defun drop-rest (application http content)
  "Drops what was not read of CONTENT, which came over HTTP for APPLICATION; NIL where it is too
much, late, or cut off."
  (prog1 (or (and (null (content-failure content)) (all-received-p content))
             (progn (pace-content application http) ; who has read it may have had its own
                    (handler-case (drop-content content *unread-limit*)
                      (end-of-file () nil))))
    (pace-io (http-io http) nil nil)))

(defun end-content (application exchange taken-p)
  "Drops the rest of the content of the request of EXCHANGE to APPLICATION; unless TAKEN-P: a
program has taken the connection away."
  (let ((http (exchange-http exchange))
        (content (exchange-content exchange)))
    (when (member (client-side (exchange-protocol exchange)) '(:body :held))
      (note-event exchange (if (and (not taken-p)
                                    (drop-rest application http content))
                               :request-end
                               :request-fault))
      (give-place-up content))          ; the reply may come much later
    (setf (http-over-p http) (last-request-read-p (exchange-protocol exchange)))))

;;; Received early

(defun content-to-come-p (http head)
  "True when the request HEAD has content of which not all is in the buffer of HTTP."
  (let ((framing (head-framing head))
        (io (http-io http)))
    (case framing
      (:none nil)
      (:chunked t)
      (t (> framing (- (io-end io) (io-start io)))))))

(defun octets-received-early (application head)
  "How many octets of the content of the request HEAD, which has some, are received before
APPLICATION answers it; 0 for none."
  (if (head-expect-100-continue-p head)
      0
      (early-octets application head)))

(defmacro or-abandoned ((http) &body body)
  "Evaluates BODY, which receives content over HTTP; :END where that is broken."
  `(handler-case (progn ,@body)
     (descriptor-broken ()
       (abandon-body-prefetch ,http)
       :end)))

(defun whole-request (application connection http)
  "Like WAITING-REQUEST, but :NONE until the content of the request has come too, as far as it is
received before that is served."
  (cond ((http-body-prefetch http)
         (if (head-expect-100-continue-p (body-prefetch-head (http-body-prefetch http)))
             (held-request connection http)
             (or-abandoned (http) (received-request application connection http))))
        (t
         (abandon-body-prefetch http)   ; of a request that nobody has processed
         (let ((head (waiting-request application connection http)))
           (if (and (typep head 'head) (content-to-come-p http head))
               (let ((most (octets-received-early application head)))
                 (cond ((plusp most)
                        (or-abandoned (http) (begin-body-prefetch application connection http head most)))
                       ((and (head-expect-100-continue-p head) (waits-full-p (worker-engine *worker*)))
                        (setf (http-body-prefetch http)
                              (make-body-prefetch head (make-content application http head) 0))
                        (held-request connection http))
                       (t head)))
               head)))))

(defparameter *held-milliseconds* 250
  "For how long a request whose client waits for 100 (Continue) is held while as many threads wait
for clients as may.")

(defun held-request (connection http)
  "The head of the request of CONNECTION that came over HTTP, whose client waits for 100 (Continue),
once it was held for *HELD-MILLISECONDS*; until then :NONE.  Its thread would wait, and another
client be given up for it: clients that are silent after 100 (Continue), and come again, would
otherwise make threads do nothing else."
  (let* ((body-prefetch (http-body-prefetch http))
         (end (+ (body-prefetch-began body-prefetch) *held-milliseconds*)))
    (cond ((and (< (milliseconds) end)
                (input-kept-p (worker-engine *worker*) http))
           (set-deadline-at connection :pause end)
           :none)
          (t
           (abandon-body-prefetch http)
           (body-prefetch-head body-prefetch)))))

(defun begin-body-prefetch (application connection http head most)
  "Receives the content of the request HEAD over HTTP, MOST octets of it, before APPLICATION
answers; returns what WHOLE-REQUEST does."
  (let ((content (make-content application http head)))
    (cond ((all-come-p content)
           (setf (http-content http) content)
           head)
          (t
           (setf (http-body-prefetch http) (make-body-prefetch head content most))
           (received-request application connection http)))))

(defun received-request (application connection http)
  "The head of the request whose content is being received over HTTP; :NONE when more of that is to
come, :END when it will not.  Signals DESCRIPTOR-BROKEN."
  (let ((body-prefetch (http-body-prefetch http))
        (idle (as-milliseconds (idle-seconds application))))
    (cond ((or (eq :all (receive-ahead body-prefetch (body-prefetch-most body-prefetch)))
               (unfinished-served-p body-prefetch idle))
           ;; At each moment HTTP has one of them: whoever releases it gives back what that has.
           (setf (http-content http) (body-prefetch-content body-prefetch)
                 (http-body-prefetch http) nil)
           (release-input (http-io http))
           (body-prefetch-head body-prefetch))
          (t
           (await-rest application connection http body-prefetch idle)))))

(defun await-rest (application connection http body-prefetch idle)
  "Lets CONNECTION wait for the rest of BODY-PREFETCH, which comes over HTTP: returns :NONE.  When
it is too late, answers the request, and returns :END.  IDLE is for how many milliseconds nothing
may come, or NIL."
  (let* ((now (milliseconds))
         (deadline (body-prefetch-deadline body-prefetch (application-limits application) idle))
         (look (next-look body-prefetch idle now)))
    (cond ((and deadline (<= deadline now))
           (count-late (worker-engine *worker*) :body)
           (refuse-body-prefetch application http :request-timeout))
          ((not (input-kept-p (worker-engine *worker*) http))
           (refuse-body-prefetch application http :no-memory))
          (t
           (if (or (null deadline) (< look deadline))
               (set-deadline-at connection :pause look)
               (set-deadline-at connection :body deadline))
           :none))))

(defun refuse-body-prefetch (application http reason)
  "Answers the request of which not all content has come over HTTP with the refusal that REASON, a
keyword, names; returns :END."
  (send-refusal (http-io http) (reject-body-prefetch application http (make-refusal reason)))
  (abandon-body-prefetch http)
  :end)

(defun reject-body-prefetch (application http refusal)
  "Counts and logs the request of which not all content has come over HTTP; returns REFUSAL, which
is why it is not served."
  (let ((head (body-prefetch-head (http-body-prefetch http))))
    (note-rejected application http refusal
                    (head-method head) (head-uri head) (head-protocol head))
    refusal))
