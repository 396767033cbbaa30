(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Clients that send many messages without waiting for answers.

(in-suite websockets)

(defun burst (count &optional (prefix "text"))
  "COUNT texts that differ."
  (loop for number below count collect (format nil "~A ~D" prefix number)))

(defun hear-all (talk texts)
  "True when TEXTS come next, in this order."
  (every (lambda (text) (equal text (hear-text talk))) texts))

(defmacro serving-stops ((gate) &body body)
  "Evaluates BODY while *SERVER* echoes texts, but for \"stop\": then it answers \"stopping\",
awaits GATE, and answers \"going on\"."
  `(let ((,gate (make-gate)))
     (serving-websocket (:on-text (lambda (socket text)
                                    (flet ((say (text) (recycling:send-text socket text)))
                                      (cond ((string= "stop" text)
                                             (say "stopping")
                                             (await ,gate)
                                             (say "going on"))
                                            (t (say text))))))
         ()
       ,@body)))

(defmacro serving-halts ((socket inside left) &body body)
  "Evaluates BODY while *SERVER* echoes texts; at a \"stop\", when it has sent that, it opens INSIDE
and awaits LEFT, gates.  SOCKET, a function without arguments there, waits for the server's end of
the WebSocket and returns it."
  `(let ((,inside (make-gate)) (,left (make-gate)))
     (serving-pushes (,socket (:on-text (lambda (socket text)
                                          (recycling:send-text socket text)
                                          (when (string= "stop" text)
                                            (open-gate ,inside)
                                            (await ,left)))))
       ,@body)))

(define-server-test (all-of-a-burst-is-answered-in-order :needs :our-engine)
  (serving-echoes (ends)
    (with-talk (talk)
      (dolist (count '(1 15 16 17 18 40 3000))
        (let ((texts (burst count)))
          (apply #'tell talk texts)
          (is-true (hear-all talk texts))))
      (is-true (end-talk talk)))
    (await-end ends 1000)))

(define-server-test (large-answers-to-a-burst-come-whole :needs :our-engine)
  (serving-websocket (:on-text (lambda (socket text)
                                 (let ((size (parse-integer text)))
                                   (recycling:send-text socket
                                                        (make-string size :initial-element #\x))
                                   (recycling:send-binary socket (test-octets size)))))
      ()
    (with-talk (talk)
      (let ((sizes (append (make-list 20 :initial-element 5)
                           '(0 1 8000 9000 16000 16384 16385 3 40000 7 7 20000))))
        (apply #'tell talk (mapcar #'princ-to-string sizes))
        (dolist (size sizes)
          (is (= size (length (hear-text talk))))
          (is (equalp (list :binary (test-octets size)) (hear talk))))))))

(define-server-test (a-message-by-itself-is-answered-while-its-handler-goes-on :needs :our-engine)
  (serving-stops (gate)
    (with-talk (talk)
      (let ((texts (burst 40)))
        (apply #'tell talk texts)
        (is-true (hear-all talk texts)))
      (tell talk "stop")
      (is (equal "stopping" (hear-text talk)))
      (open-gate gate)
      (is (equal "going on" (hear-text talk))))))

(define-server-test (a-handler-that-waits-amid-a-burst-holds-back-no-answer :needs :our-engine)
  (serving-stops (gate)
    (with-talk (talk)
      (apply #'tell talk (append (burst 40) '("stop" "after" "last")))
      (is-true (hear-all talk (append (burst 40) '("stopping"))))
      (open-gate gate)
      (is-true (hear-all talk '("going on" "after" "last"))))))

(define-server-test
    (a-handler-that-waits-at-the-end-of-a-burst-holds-back-no-answer :needs :our-engine)
  (let* ((gates (loop repeat 20 collect (make-gate)))
         ;; a handler may come to its gate when the client has opened it long since
         (coming gates))
    (serving-websocket (:on-text (lambda (socket text)
                                   (if (string= "stop" text)
                                       (await (pop coming))
                                       (recycling:send-text socket text))))
        ()
      (with-talk (talk)
        (dolist (gate gates)
          (apply #'tell talk (append (burst 3) '("stop")))
          (is-true (hear-all talk (burst 3)))
          (open-gate gate))))))

(define-server-test (a-websocket-may-be-closed-amid-a-burst :needs :our-engine)
  (serving-websocket (:on-text (lambda (socket text)
                                 (if (string= "enough" text)
                                     (recycling:close-websocket socket :code 3000 :reason "enough")
                                     (recycling:send-text socket text))))
      ()
    (with-talk (talk)
      (apply #'tell talk (append (burst 40) '("enough") (burst 5 "unheard")))
      (is-true (hear-all talk (burst 40)))
      (is (equal '(:close 3000 "enough") (hear talk))))))

(define-server-test (what-others-send-does-not-wait-for-a-burst :needs (:our-engine :parking))
  (serving-halts (socket inside left)
    (with-talk (talk)
      (apply #'tell talk (append (burst 40) '("stop" "after")))
      (await inside)
      (recycling:send-text (socket) "news")
      (is-true (hear-all talk (append (burst 40) '("stop" "news"))))
      (open-gate left)
      (is (equal "after" (hear-text talk))))))

(test queued-octets-leave-in-their-order-small-ones-together
  (let* ((seed (fresh-seed))
         (state (seeded-state seed)))
    (loop repeat 20
          do (let* ((vectors (loop repeat (random 30 state)
                                   collect (test-octets (random (expt 10 (1+ (random 5 state)))
                                                                state))))
                    (sent (mapcar #'engine:octets-part-octets
                                  (server::parts-of (reverse vectors)))))
               (flet ((all-of (vectors) (apply #'concatenate '(vector (unsigned-byte 8)) vectors)))
                 (is (null (octet-difference (all-of vectors) (all-of sent))) "seed ~D" seed))
               (is-true (loop for (part next) on sent
                              always (and (or (<= (length part) server::+most-joined+)
                                              (member part vectors :test #'eq))
                                          (or (null next)
                                              (> (+ (length part) (length next))
                                                 server::+most-joined+))))
                        "seed ~D" seed)))))

(test a-vector-without-octets-does-not-stay-in-an-shared-queue
  (let ((shared-queue (server:make-shared-queue 100)))
    (is-true (server::nothing-to-send-p shared-queue))
    (is (eq :room (server:put-in-shared-queue shared-queue (test-octets 0))))
    (is-false (server::nothing-to-send-p shared-queue))
    (is (equal '(1 nil) (multiple-value-bind (queue last-p) (server::take-incoming shared-queue)
                          (list (length queue) last-p))))
    (is-true (server::nothing-to-send-p shared-queue))))

;;; What the system may hold

(defmacro recording-holds ((held released) &body body)
  "Evaluates BODY while HELD, a recorder, gets the octets that the system may hold, and RELEASED a
true value each time when it is to send them."
  `(let ((,held (make-recorder)) (,released (make-recorder)))
     (with-function (engine:flush-queue (original queue descriptor &optional more-p)
                      (when more-p
                        (record ,held (engine:octets-part-octets
                                       (first (engine:send-queue-parts queue)))))
                      (funcall original queue descriptor more-p))
       (with-function (platform:send-held-octets (original descriptor)
                        (record ,released t)
                        (funcall original descriptor))
         ,@body))))

(defmacro recording-quick-holds ((held released) &body body)
  "Like RECORDING-HOLDS, however long messages take."
  `(with-globals ((server::*long-milliseconds* (* 1000 *patience*)))
     (recording-holds (,held ,released) ,@body)))

(define-server-test (answers-to-a-burst-leave-together :needs (:our-engine :parking))
  (recording-quick-holds (held released)
    (serving-echoes (ends)
      (with-talk (talk)
        (tell talk "alone")
        (is (string= "alone" (hear-text talk)))
        (is (zerop (recorded-count held)))
        (apply #'tell talk (burst 40))
        (is-true (hear-all talk (burst 40)))
        (is (plusp (recorded-count held)))
        (is (> 40 (recorded-count held)) "The last one takes the others along.")
        (is (zerop (recorded-count released)))))))

(define-server-test
    (where-the-last-of-a-burst-has-no-answer-the-others-leave :needs (:our-engine :parking))
  (recording-quick-holds (held released)
    (serving-websocket (:on-text (lambda (socket text)
                                   (unless (string= "no answer" text)
                                     (recycling:send-text socket text))))
        ()
      (with-talk (talk)
        (apply #'tell talk (append (burst 3) '("no answer")))
        (is-true (hear-all talk (burst 3)))
        (is (plusp (recorded-count held)))
        (eventually ("the system to be told") (plusp (recorded-count released)))))))

(defun held-p (text held)
  "True when HELD, of RECORDING-HOLDS, has octets of TEXT."
  (some (lambda (octets) (search (octets text) octets)) (recorded held)))

(defun stay (milliseconds)
  "Keeps the processor busy for MILLISECONDS."
  (let ((end (+ milliseconds (platform:milliseconds))))
    (loop until (<= end (platform:milliseconds)))))

(defmacro serving-slow-echoes ((milliseconds &optional only) &body body)
  "Evaluates BODY while *SERVER* echoes texts; ONLY, a text, or each, after it was busy for
MILLISECONDS."
  `(serving-websocket (:on-text (lambda (socket text)
                                  (when ,(if only `(string= ,only text) t)
                                    (stay ,milliseconds))
                                  (recycling:send-text socket text)))
       ()
     ,@body))

(define-server-test (behind-a-message-that-took-long-nothing-is-held :needs (:our-engine :parking))
  (recording-holds (held released)
    (serving-slow-echoes (10 "slow")
      (with-talk (talk)
        (apply #'tell talk '("slow" "next" "last"))
        (is-true (hear-all talk '("slow" "next" "last")))
        (is-false (held-p "next" held))))))

(define-server-test (what-others-send-takes-along-what-is-held :needs (:our-engine :parking))
  (recording-holds (held released)
    (serving-halts (socket inside left)
      (with-talk (talk)
        (apply #'tell talk '("stop" "after"))
        (await inside)
        (is (= 1 (recorded-count held)))
        (recycling:send-text (socket) "news")
        (is-true (hear-all talk '("stop" "news")))
        (is (= 1 (recorded-count held)))
        (open-gate left)
        (is (equal "after" (hear-text talk)))))))

(define-server-test
    (behind-a-last-message-that-took-long-nothing-is-held :needs (:our-engine :parking))
  (recording-holds (held released)
    (serving-slow-echoes (10 "slow")
      (with-talk (talk)
        (apply #'tell talk '("first" "slow"))
        (is-true (hear-all talk '("first" "slow")))
        (apply #'tell talk '("second" "slow"))
        (is-true (hear-all talk '("second" "slow")))
        (is-false (held-p "second" held))
        (tell talk "slow")
        (is (string= "slow" (hear-text talk)))
        (apply #'tell talk '("third" "slow"))
        (is-true (hear-all talk '("third" "slow")))
        (is-false (held-p "third" held))))))

(define-server-test (quick-messages-together-hold-no-answer-for-long :needs (:our-engine :parking))
  (recording-holds (held released)
    (serving-slow-echoes (1)
      (with-talk (talk)
        (apply #'tell talk (burst 20))
        (is-true (hear-all talk (burst 20)))
        (is (> 15 (recorded-count held)) "Some of them take the others along.")))))

(define-server-test (a-thread-that-ends-amid-a-burst-takes-no-answer-with-it
                     :needs (:our-engine :parking :deferred-ends))
  (let ((inside (make-gate)) (never (make-gate)) (victim nil))
    (serving-websocket (:on-text (lambda (socket text)
                                   (cond ((string= "stop" text)
                                          (setf victim (bt:current-thread))
                                          (open-gate inside)
                                          (await never))
                                         (t (recycling:send-text socket text)))))
        ()
      (with-talk (talk)
        ;; What is not read makes the end a reset, which drops what the system holds.
        (tell talk (mapcar (lambda (text) (frame :text text))
                           (append (burst 3)
                                   (list "stop" (make-string 40000 :initial-element #\x)))))
        (await inside)
        (platform:destroy-thread victim)
        (is-true (hear-all talk (burst 3)))))))

(define-server-test (what-others-send-when-a-handler-begins-is-not-held
                     :needs (:our-engine :parking :calls-by-name))
  (recording-holds (held released)
    (serving-echoes (ends)
      (with-function (server::lend-sending (original socket)
                       (recycling:send-text socket "news")
                       (funcall original socket))
        (with-talk (talk)
          (apply #'tell talk (burst 3))
          (loop for text in (burst 3)
                do (is-true (hear-all talk (list "news" text))))
          (is-true (held-p "text" held))
          (is-false (held-p "news" held)))))))

(define-server-test
    (what-is-put-while-the-owner-sends-is-let-go :needs (:our-engine :parking :calls-by-name))
  (recording-holds (held released)
    (let ((news (websocket:encode-frame :text "news")))
      (serving-websocket (:on-text (lambda (socket text)
                                     (when (string= "look" text)
                                       (server::relay-queued socket))))
          ()
        (with-function (server:send-queued (original shared-queue io &key more-p)
                         (when more-p
                           (server:put-in-shared-queue shared-queue news))
                         (funcall original shared-queue io :more-p more-p))
          (with-talk (talk)
            (apply #'tell talk '("look" "last"))
            (is (string= "news" (hear-text talk)))
            (is-true (held-p "news" held))
            (eventually ("the system to be told") (plusp (recorded-count released)))))))))
