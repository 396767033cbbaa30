(in-package #:hunchentoot-recycling-taskmaster-test)

;;; On Hunchentoot's front the server speaks the protocol; on Clack's the application does, as
;;; SPEAK-WEBSOCKET, and the server looks after limits, pings and the end.

(def-suite* fronts/websockets :in fronts
  :description "WebSockets, from the handshake to the end.")

(defmacro with-websockets (((&rest functions) &rest arguments) &body body)
  "Evaluates BODY while *SERVER*, made with ARGUMENTS, opens WebSockets with FUNCTIONS, those of
WEBSOCKET.  Unless ARGUMENTS say otherwise, a client may be silent for ever: the machine may be
busy, and those of the tests do not answer pings by themselves."
  `(with-front (request ,@arguments :websocket-ping-seconds nil :websocket-idle-seconds nil)
       (websocket request ,@functions)
     ,@body))

(defun note-code (recorder)
  "An ON-CLOSE that records codes."
  (lambda (socket code)
    (declare (ignore socket))
    (record recorder code)))

(defmacro with-echoes ((ends &rest arguments) &body body)
  "Evaluates BODY while *SERVER*, made with ARGUMENTS, echoes all messages; ENDS is bound to a
recorder of the codes of the ends."
  `(let ((,ends (make-recorder)))
     (with-websockets ((:on-text #'websocket-say :on-binary #'websocket-say
                        :on-close (note-code ,ends))
                       ,@arguments)
       ,@body)))

(defun await-codes (ends &rest codes)
  "Checks that ENDS has recorded CODES, and nothing else, a moment later."
  (eventually ("WebSockets to end") (<= (length codes) (recorded-count ends)))
  (is (equal codes (recorded ends))))

(defun check-others ()
  "Checks that all connections of *SERVER* end, and that others are served."
  (eventually ("the connections to end") (zerop (figure :open)))
  (is (equal "word" (ask-text "/word"))))

;;; Messages

(define-front-test (a-websocket-echoes-what-comes :modes (:plain :unparked :tls))
  (with-echoes (ends)
    (with-talk (talk :more (list (frame :text "early") (frame :ping "?") (frame :text "bird")))
      (is (string= "early" (hear-text talk)))
      (is (equalp (list :pong (octets "?")) (hear talk)))
      (is (string= "bird" (hear-text talk)))
      (dolist (message (list "" (string (code-char 8364)) (octets "octets") (test-octets 0)
                             (make-string 125 :initial-element #\b)
                             (make-string 126 :initial-element #\c)
                             (test-octets 65535) (test-octets 65536)
                             (make-string 70000 :initial-element #\d)))
        (tell talk (frame (if (stringp message) :text :binary) message))
        (is (equalp message (second (hear talk)))))
      (tell talk (make-frame 1 (octets "frag") :fin nil) (frame :ping "between")
            (make-frame 0 (octets "men") :fin nil) (make-frame 0 (octets "ts")))
      (is (equalp (list :pong (octets "between")) (hear talk)))
      (is (string= "fragments" (hear-text talk)))
      (is (end-talk talk)))
    (with-connection (connection)
      (is (equal "word" (exchange-text connection "/word")))
      (send-in-pieces connection 1 (handshake-octets) (frame :text "piecemeal"))
      (is (= 101 (response-status (read-head connection))))
      (is (string= "piecemeal" (hear-text (make-talk connection)))))
    (await-codes ends 1000 1006)
    (is (equal "" (front-log)))))

(defun message-at-random (state)
  "A random text or vector of octets, of very different lengths."
  (let ((size (random (expt 10 (random 5 state)) state)))
    (if (zerop (random 2 state))
        (map-into (make-string size) (lambda () (code-char (+ 32 (random 900 state)))))
        (map-into (make-array size :element-type '(unsigned-byte 8))
                  (lambda () (random 256 state))))))

(defun frames-at-random (message state)
  "The octets of frames that carry MESSAGE, with pongs between them."
  (let* ((octets (if (stringp message) (text-octets message) message))
         (cuts (sort (loop repeat (random 4 state) collect (random (1+ (length octets)) state))
                     #'<)))
    (loop for start = 0 then end
          for (end . more) on (append cuts (list (length octets)))
          for opcode = (if (stringp message) 1 2) then 0
          collect (make-frame opcode (subseq octets start end)
                              :fin (null more)
                              :mask (loop repeat 4 collect (random 256 state)))
          when more
            collect (make-frame 10 (octets "unasked")))))

(defun talk-at-random (seed)
  "Has a client send random messages in random pieces; true when all are echoed in order."
  (let* ((state (seeded-state seed))
         (messages (loop repeat 40 collect (message-at-random state)))
         (octets (octets (loop for message in messages collect (frames-at-random message state)))))
    (with-talk (talk)
      (let ((sender (in-background ("sending")
                      (loop with start = 0
                            while (< start (length octets))
                            do (let ((end (min (length octets) (+ start 1 (random 20000 state)))))
                                 (send (talk-connection talk) (subseq octets start end))
                                 (setf start end)))
                      (say-close talk))))
        (prog1 (and (loop for message in messages
                          always (equalp message (second (hear talk))))
                    (eql 1000 (hear-close talk))
                    (equal '(:end) (hear talk)))
          (task-result sender))))))

(define-front-test (messages-at-random-are-echoed-in-order :needs :full-duplex-client)
  (let ((seed (fresh-seed)) (count (rounds 5)))
    (format t "~&Random messages: seed ~D~%" seed)
    (with-echoes (ends)
      (let ((clients (loop for number below count
                           collect (let ((number number))
                                     (in-background ("a client")
                                       (talk-at-random (+ seed number)))))))
        (is (every (lambda (client) (task-result client 60)) clients) "Seed ~D" seed))
      (apply #'await-codes ends (make-list count :initial-element 1000)))))

(defun burst (count &optional (prefix "text"))
  "COUNT texts that differ."
  (loop for number below count collect (format nil "~A ~D" prefix number)))

(defun hear-all (talk texts)
  "True when TEXTS come next, in this order."
  (every (lambda (text) (equal text (hear-text talk))) texts))

(define-front-test a-burst-is-answered-in-order-whatever-handlers-do
  (let ((gate (make-gate)) (end nil))
    (with-websockets ((:on-open (lambda (socket) (setf end socket))
                       :on-text (lambda (socket text)
                                  (cond ((string= "enough" text) (websocket-end socket 3000))
                                        (t (websocket-say socket text)
                                           (when (string= "stop" text)
                                             (await gate)))))))
      (with-talk (talk)
        (dolist (count '(1 16 17 3000))
          (apply #'tell talk (burst count))
          (is-true (hear-all talk (burst count))))
        (apply #'tell talk (append (burst 40) '("stop" "after")))
        (is-true (hear-all talk (append (burst 40) '("stop"))) "A handler holds back no answer.")
        (when *parking-p*
          (websocket-say end "news")
          (is (equal "news" (hear-text talk)) "Nor what others send."))
        (open-gate gate)
        (is (equal "after" (hear-text talk)))
        (apply #'tell talk (append (burst 40) '("enough") (burst 5 "unheard")))
        (is-true (hear-all talk (burst 40)))
        (is (eql 3000 (hear-close talk)))))))

(define-front-test (any-thread-may-send-and-close :modes (:plain :unparked :tls))
  (let ((sockets (make-recorder)))
    (with-websockets ((:on-open (lambda (socket) (record sockets socket))))
      (with-connections (connections 3)
        (let* ((talks (mapcar #'open-talk connections))
               (open (eventually ("all to be open")
                       (and (= 3 (recorded-count sockets)) (recorded sockets))))
               (writers (loop for writer in '("a" "b" "c" "d")
                              collect (let ((writer writer))
                                        (in-background ("writing")
                                          (dolist (text (burst 50 writer))
                                            (dolist (socket open)
                                              (websocket-say socket text))))))))
          (dolist (talk talks)
            (let ((heard (loop repeat 200 collect (hear-text talk))))
              (dolist (writer '("a" "b" "c" "d"))
                (is (equal (burst 50 writer)
                           (remove-if-not (lambda (text) (string= writer text :end2 1)) heard))))))
          (mapc #'task-result writers)
          (dolist (socket open)
            (task-result (in-background ("closing") (websocket-end socket 3000))))
          (dolist (talk talks)
            (is (eql 3000 (hear-close talk)))))))))

;;; Limits

(define-front-test a-message-is-no-longer-than-is-said
  (with-echoes (ends :websocket-message-octets 1000)
    (with-talk (talk)
      (loop repeat 2
            do (tell talk (frame :binary (test-octets 1000)))
               (is (equalp (test-octets 1000) (second (hear talk)))))
      (tell talk (subseq (frame :binary (test-octets 1001)) 0 4)) ; before it has come
      (is (eql 1009 (hear-close talk)))
      (is (equal '(:end) (hear talk))))
    (with-talk (talk)
      (tell talk (make-frame 2 (test-octets 600) :fin nil) (make-frame 9 (octets "ping"))
            (make-frame 0 (test-octets 401)))
      (is (eql 1009 (second (hear-kind talk :close)))))
    (check-others)))

(define-front-test a-client-that-breaks-a-rule-is-told-which
  (with-echoes (ends)
    (loop for (code . octets)
            in (list (cons 1002 (make-frame 1 (octets "bare") :mask nil))
                     (cons 1002 (make-frame 3 (octets "opcode")))
                     (cons 1007 (make-frame 1 (octets (vector 255))))
                     (cons 1002 (request-octets "/" :headers `(("X" . ,(make-string 100))))))
          do (with-talk (talk)
               (tell talk octets)
               (destructuring-bind (kind heard &optional (reason "")) (hear talk)
                 (is (equal (list :close code) (list kind heard)))
                 (when (eq :hunchentoot *front*)
                   (is (string/= "" reason))))
               (is (equal '(:end) (hear talk)))))
    (check-others)
    (when (eq :hunchentoot *front*)
      (await-codes ends 1002 1002 1007 1002))))

(define-front-test silent-clients-are-pinged-and-then-count-as-gone
  (with-echoes (ends :websocket-ping-seconds 1/10 :websocket-idle-seconds 60)
    (with-talk (talk)                   ; it is never too slow
      (loop repeat 5
            do (is (eq :ping (first (hear talk))))
               (tell talk (frame :pong "")))
      (tell talk "here")
      (is (string= "here" (second (hear-kind talk :text))))))
  (let ((ends (make-recorder)) (end nil))
    (with-websockets ((:on-open (lambda (socket) (setf end socket))
                       :on-text #'websocket-say
                       :on-close (note-code ends))
                      :websocket-ping-seconds 1/10 :websocket-idle-seconds 1/2)
      (dolist (more (list (subseq (frame :text "half") 0 4) (frame :text "whole")))
        (with-talk (talk :more more)
          (let ((kinds (loop repeat 4 collect (first (hear talk)))))
            (is (= 1 (count :ping kinds)))
            (is (member :end kinds)))))
      (with-talk (talk)
        (eventually ("a silent client to count as gone, whatever is sent to it")
          (handler-case (progn (websocket-say end "news") nil)
            (recycling:client-left () t))))
      (await-codes ends 1006 1006 1006))))

(define-front-test a-client-that-speaks-is-not-gone
  (with-growing-limit (seconds)
    (with-echoes (ends :websocket-idle-seconds seconds)
      (with-talk (talk)
        (loop repeat 4
              do (is (equal '(:text "here") (promptly (poll (constantly nil) (* 4/10 seconds))
                                                      (tell talk "here")
                                                      (hear talk)))))))))

;;; Clients that take their time, or none

(define-front-test (senders-wait-for-a-slow-client :modes (:plain :unparked :tls))
  ;; The system takes some ten million octets on its way.
  (let* ((end nil) (sent (make-recorder)) (message (test-octets 300000)))
    (flet ((say-all (socket)
             (loop repeat 40 do (record sent (websocket-say socket message)))))
      (with-websockets ((:on-open (lambda (socket) (setf end socket))
                         :on-text (lambda (socket text)
                                    (declare (ignore text))
                                    (say-all socket)))
                        :write-timeout 600)
        (with-talk (talk)
          (tell talk "go")
          (dolist (count '(40 80))
            (is (not (poll (lambda () (= count (recorded-count sent))) 1/4)))
            (is (loop repeat 40
                      always (progn (receive-many (talk-connection talk) 10)
                                    (null (octet-difference
                                           message (receive-many (talk-connection talk)
                                                                 300000))))))
            (eventually ("all to be sent") (= count (recorded-count sent)))
            (when (= 40 count)
              (in-background ("sending") (say-all end)))))))))

(define-front-test (a-websocket-whose-client-takes-nothing-ends :needs :noticed-leaving)
  (let ((ends (make-recorder)) (told (make-recorder)))
    (with-websockets ((:on-text (lambda (socket text)
                                  (declare (ignore text))
                                  (handler-case (loop (websocket-say socket (test-octets 300000)))
                                    (recycling:client-left () (record told :left))))
                       :on-close (note-code ends))
                      :write-timeout 1/4)
      (with-talk (talk)
        (tell talk "go")
        (await-codes ends 1006)
        (is (equal '(:left) (recorded told)))
        (check-others)))))

(define-front-test (floods-of-small-frames-end-nothing :needs :full-duplex-client)
  (let ((end nil) (over-p nil))
    (with-websockets ((:on-open (lambda (socket) (setf end socket)) :on-text #'websocket-say))
      (with-talk (talk)
        (let ((flood (in-background ("a flood of pings")
                       (loop repeat (rounds 100)
                             do (tell talk (loop repeat 100 collect (frame :ping "12345678"))))
                       (tell talk "through"))))
          (is (string= "through" (second (hear-kind talk :text))))
          (task-result flood))
        (let ((flood (in-background ("a flood of pongs")
                       (loop with pongs = (octets (loop repeat 2000 collect (frame :pong "")))
                             until over-p do (tell talk pongs)))))
          (unwind-protect (progn (when *parking-p*
                                   (websocket-say end "news")
                                   (is (string= "news" (hear-text talk))))
                                 (is (equal "word" (ask-text "/word"))))
            (setf over-p t))
          (task-result flood))
        (is (end-talk talk))))))

(define-front-test a-client-may-leave-at-any-point
  (let ((ends (make-recorder)) (inside (make-recorder)) (gate (make-gate)))
    (with-websockets ((:on-text (lambda (socket text)
                                  (cond ((string= "wait" text)
                                         (record inside text)
                                         (await gate))
                                        (t (websocket-say socket text))))
                       :on-close (note-code ends)))
      (dolist (leave (list #'reset #'disconnect #'end-sending))
        (dolist (octets (list '()
                              (frame :text "answered")
                              (subseq (frame :text "word") 0 1)
                              (subseq (frame :binary (test-octets 70000)) 0 40000)
                              (make-frame 1 (octets "frag") :fin nil)
                              (list (frame :text "wait") (frame :text "unheard"))))
          (with-talk (talk)
            (tell talk octets)
            (when (and (consp octets) (not (open-p gate)))
              (eventually ("the handler to run") (recorded inside)))
            (funcall leave (talk-connection talk))
            (when (consp octets)
              (open-gate gate))
            (eventually ("the end") (pop (recorder-entries ends))))))
      (check-others)
      (is (zerop (figure :failed)))))
  (let ((entered (make-gate)) (gate (make-gate)))
    (with-front (request)
        (progn (open-gate entered)
               (await gate)
               (websocket request))
      (with-connection (connection)
        (send connection (handshake-octets))
        (await entered)
        (reset connection))
      (open-gate gate)
      (check-others))))

(define-front-test (idle-websockets-have-no-thread :modes (:plain :tls) :needs :parking)
  (with-echoes (ends :worker-num 2)
    (with-connections (connections 50)
      (let ((talks (mapcar #'open-talk connections)))
        ;; Each handshake held a worker for a moment: on a busy machine others were made meanwhile.
        (eventually ("their threads to end") (>= 10 (figure :threads)))
        (dolist (talk talks)
          (tell talk "still there"))
        (is (every (lambda (talk) (string= "still there" (hear-text talk))) talks))))))

;;; Handlers that fail

(define-front-test a-handler-that-fails-ends-its-websocket-only
  (dolist (condition '(program-error storage-condition))
    (with-websockets ((:on-text (lambda (socket text)
                                  (if (string= "fail" text)
                                      (error (make-condition condition))
                                      (websocket-say socket text)))))
      (with-talk (other)
        (with-talk (talk)
          (tell talk "fail" "more")
          (is (equal '(:close 1011 "The server failed.") (hear talk)))
          (say-close talk 1011)
          (is (equal '(:end) (hear talk))))
        (tell other "fine")
        (is (string= "fine" (hear-text other))))
      (is-true (await-log "GET /ws")))))

;;; The end

(define-front-test (either-side-may-close :modes (:plain :unparked :tls))
  (let ((ends (make-recorder)))
    (with-websockets ((:on-text (lambda (socket text)
                                  (if (string= "close" text)
                                      (websocket-end socket 3000)
                                      (websocket-say socket text)))
                       :on-close (note-code ends)))
      (loop repeat 10
            do (with-talk (talk)
                 (tell talk "last")
                 (say-close talk 4000 "done")
                 (is (string= "last" (hear-text talk)))
                 (is (eql 4000 (hear-close talk)))
                 (is (equal '(:end) (hear talk)))))
      (apply #'await-codes ends (make-list 10 :initial-element 4000))
      (with-talk (talk)
        (tell talk "close")
        (is (eql 3000 (hear-close talk)))
        (say-close talk 3000)
        (is (equal '(:end) (hear talk))))
      (apply #'await-codes ends (append (make-list 10 :initial-element 4000) '(3000)))
      (when (eq :plain *mode*)          ; a client that says nothing is not waited for long
        (with-talk (talk)
          (tell talk "close")
          (is (eql 3000 (hear-close talk)))
          (is (equal '(:end) (hear talk)))))
      (check-others))))

(define-front-test (a-stop-tells-clients-to-go :modes (:plain :unparked :tls))
  (dolist (soft-p '(t nil))
    (with-echoes (ends)
      (with-connections (connections 3)
        (let ((talks (mapcar #'open-talk connections)))
          (dolist (talk talks)
            (tell talk "word")
            (is (string= "word" (hear-text talk))))
          (let ((stop (in-background ("stopping") (stop-front :soft soft-p))))
            (dolist (talk talks)
              (is (eql 1001 (hear-close talk)))
              (say-close talk 1001)
              (is (equal '(:end) (hear talk))))
            (task-result stop))))
      (await-codes ends 1001 1001 1001))))
