(in-package #:hunchentoot-recycling-taskmaster-test)

(in-suite clack/sockets)

(define-server-test (applications-speak-over-tls :needs :tls-client)
  (dolist (parking-p '(t nil))
    (with-clack-over-tls (environment
                          (lambda (responder)
                            (declare (ignore responder))
                            (begin-speaking environment
                                            (lambda (frame) (answer-frame environment frame))))
                          :parking parking-p)
      (let ((octets (test-octets 300000)))
        (with-talk (talk :more (list (frame :text "early") (frame :text "bird")))
          (is (string= "early" (hear-text talk)))
          (is (string= "bird" (hear-text talk)))
          (tell talk (frame :binary octets))
          (is (equalp (list :binary octets) (hear talk)))
          (is (end-talk talk)))
        (with-talk (talk)               ; who leaves
          (tell talk "one")
          (is (string= "one" (hear-text talk))))))))
