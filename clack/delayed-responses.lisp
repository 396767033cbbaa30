(in-package #:clack.handler.recycling)

;;;; Responses that an application gives to a function, the responder: as a whole, or without a body; then it gets a
;;;; writer, another function, for that.
;;;;
;;;;   the reply's side is  the responder was         at the end of RESPOND-LATER
;;;;   :IDLE                not called                it is an error: nobody will answer
;;;;   :BODY                called without a body     what was written is all
;;;;   :DONE                called with a body, or    nothing
;;;;                        the writer has closed

(define-condition response-over (recycling-error)
  ()
  (:report "The response was given before, or has come to its end.")
  (:documentation "An application goes on with a response that is over."))

(defstruct (delayed (:include opaque) (:constructor make-delayed (server exchange content)))
  "The response to EXCHANGE, on a request with CONTENT, that SERVER is to give."
  (server nil :read-only t)
  (exchange nil :read-only t)
  (content nil :read-only t)
  (stream nil))                         ; for what is written, a REPLY-STREAM

(defun delayed-side (delayed)
  (our-side (exchange-protocol (delayed-exchange delayed))))

;;; What is written

(defun framing-of-stream (head status headers)
  "How the content of a response with STATUS and HEADERS, of which nobody knows the end, is framed: as
MAKE-REPLY-STREAM has it."
  (cond ((= 101 status) :plain)
        ((not (content-wanted-p head status)) :none)
        ((announced-length headers))
        ((eq :http/1.1 (head-protocol head)) :chunked)
        (t :plain)))

(defun said-framing (framing head status headers)
  "What the head of a response says of its FRAMING, as ENCODE-RESPONSE-HEAD has it."
  (case framing
    (:plain nil)
    (:none (or (announced-length headers)
               (and (body-allowed-p status)
                    (eq :http/1.1 (head-protocol head))
                    :chunked)))
    (t framing)))

(defun begin-stream (delayed status headers)
  "Sends the head of the response DELAYED with STATUS and HEADERS, and prepares what the writer writes to."
  (let* ((server (delayed-server delayed))
         (exchange (delayed-exchange delayed))
         (head (exchange-head exchange))
         (wire (link-wire (exchange-link exchange)))
         (framing (framing-of-stream head status headers))
         (event (response-event server status headers (not (eq :plain framing)))))
    (with-reply (reply)
      (encode-response-head reply server exchange status headers event
                            (said-framing framing head status headers))
      (whole-or-broken (wire)
        (note-event exchange event)
        (write-encoded wire reply)))
    (setf (delayed-stream delayed) (make-reply-stream wire (wire-stream wire) framing))
    (push-output wire)))

(defun write-string-to (stream string start end)
  "Writes STRING from START to END, in UTF-8, to STREAM."
  (with-line (line)
    (encode-string line (if (and (= 0 start) (= end (length string)))
                            string
                            (subseq string start end))
                   :utf-8)
    (write-sequence (output-octets line) stream :end (output-fill line))))

(defun end-written (delayed)
  "Ends the response DELAYED, of which the head was sent."
  (note-event (delayed-exchange delayed)
              (if (end-reply (delayed-stream delayed)) :reply-end :reply-cut)))

(defun write-chunk (delayed chunk start end close-p)
  "Writes CHUNK, a string, octets or NIL, from START to END to the client of DELAYED; ends that if CLOSE-P."
  (unless (eq :body (delayed-side delayed))
    (error 'response-over))
  (let ((stream (delayed-stream delayed)))
    (etypecase chunk
      (null)
      (string (write-string-to stream chunk start (or end (length chunk))))
      ((vector octet) (write-sequence chunk stream :start start :end (or end (length chunk)))))
    (if close-p
        (end-written delayed)
        (force-output stream)))
  (values))

(defun make-writer (delayed)
  "The function by which an application writes the content of DELAYED."
  (lambda (chunk &key (start 0) end close)
    (write-chunk delayed chunk start end close)))

;;; The responder

(defun answer-delayed (delayed response)
  "Sends RESPONSE as what DELAYED was for.  Returns a writer where it has no body."
  (unless (eq :idle (delayed-side delayed))
    (error 'response-over))
  (check-response response)
  (cond ((cddr response)
         (send-response (delayed-server delayed) (delayed-exchange delayed) (delayed-content delayed)
                        response)
         nil)
        (t
         (begin-stream delayed (first response) (second response))
         (make-writer delayed))))

(defun respond-later (server exchange content function)
  "Has FUNCTION, which an application of SERVER has returned for the request of EXCHANGE, with CONTENT, answer by the
responder that it is called with: within this call."
  (let ((delayed (make-delayed server exchange content)))
    (funcall function (lambda (response)
                        (answer-delayed delayed response)))
    (ecase (delayed-side delayed)
      (:idle (error 'unfit-response :response function))
      (:body (end-written delayed))
      ((:done :switched :error)))))
