(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; Which requests the live page gets: the page at its path, its events below that, and questions
;;;; where a worker is.
;;;;
;;;;   request                  response
;;;;   GET, HEAD  /live         the page
;;;;   GET        /live/events  a stream of snapshots
;;;;   POST       /live/worker  where the worker is that the query names

(defun path-below (path name)
  "The path of NAME, a string, below PATH."
  (format nil "~A/~A" (string-right-trim "/" path) name))

(defun make-live-test (path allow)
  "A function of the same arguments as that of MAKE-PAGE-TEST, with PATH and ALLOW.  It returns what
the request gets of the live page at PATH, :PAGE, :EVENTS or :WORKER, or NIL.  Signals
UNFIT-ARGUMENT."
  (let ((page-p (make-page-test path allow)))
    (let ((events-p (make-page-test (path-below path "events") allow :methods '(:get)))
          (worker-p (make-page-test (path-below path "worker") allow :methods '(:post))))
      (lambda (&rest request)
        (cond ((apply page-p request) :page)
              ((apply events-p request) :events)
              ((apply worker-p request) :worker))))))

(defun answer-about-worker (servers name asked-by)
  "The page, as WORKER-PAGE returns it for SERVERS and NAME.  ASKED-BY is the value of the header
field Live-Page, or NIL.  A page of another site cannot send that field without this server's
permission, so no link and no form makes a server interrupt its threads."
  (if asked-by
      (worker-page servers name)
      (text-page 403 "text/plain; charset=utf-8"
                 (format nil "Only the live page may ask that.~%"))))
