(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Messages to octets: RFC 6455, section 5.2.

(def-suite* websocket-encoder :in websocket
  :description "Frames as they are sent.")

(test frames-of-a-server-are-the-rfcs
  (is (equalp (hex-octets "81 05 48 65 6C 6C 6F") (websocket:encode-frame :text "Hello")))
  (is (equalp (hex-octets "89 05 48 65 6C 6C 6F") (websocket:encode-frame :ping "Hello")))
  (is (equalp (hex-octets "8A 00") (websocket:encode-frame :pong (octets))))
  (is (equalp (hex-octets "82 02 00 FF") (websocket:encode-frame :binary (hex-octets "00 FF")))))

(test frames-of-a-client-are-the-rfcs
  (is (equalp (hex-octets "81 85 37 FA 21 3D 7F 9F 4D 51 58")
              (websocket:encode-frame :text "Hello" :mask #x3D21FA37)))
  (is (equalp (hex-octets "81 85 37 FA 21 3D 7F 9F 4D 51 58")
              (websocket:encode-frame :text (encode "Hello") :mask #x3D21FA37))))

(test frames-are-as-others-make-them
  "All sizes near a limit of the format, with and without a mask."
  (dolist (size '(0 1 3 7 8 9 124 125 126 127 128 65535 65536 65537))
    (let ((payload (test-octets size)))
      (is (equalp (make-frame 2 payload :mask nil) (websocket:encode-frame :binary payload))
          "~D" size)
      (is (equalp (make-frame 2 payload) (websocket:encode-frame :binary payload :mask #x3D21FA37))
          "~D" size))))

(test texts-go-in-utf-8
  (let ((text (map 'string #'code-char '(97 #xE9 #x20AC #xFFFD 122))))
    (is (equalp (make-frame 1 (hex-octets "61 C3 A9 E2 82 AC EF BF BD 7A") :mask nil)
                (websocket:encode-frame :text text)))
    (is (equalp (websocket:encode-frame :text text)
                (websocket:encode-frame :text (text-octets text)))))
  (is (equalp (make-frame 1 (octets) :mask nil) (websocket:encode-frame :text "")))
  (is (equalp (make-frame 1 (encode "abc") :mask nil)
              (websocket:encode-frame :text (make-array 3 :element-type 'character
                                                          :adjustable t :fill-pointer 3
                                                          :initial-contents "abc")))))

(test octets-may-be-in-any-vector-of-them
  (let ((octets (make-array 5 :element-type '(unsigned-byte 8) :adjustable t :fill-pointer 3
                              :initial-contents '(1 2 3 4 5))))
    (is (equalp (make-frame 2 (as-octets '(1 2 3)) :mask nil)
                (websocket:encode-frame :binary octets)))))

(test what-must-not-be-sent-is-an-error
  (signals error (websocket:encode-frame :text (hex-octets "FF")))
  (signals error (websocket:encode-frame :text (hex-octets "C3")))
  (signals error (websocket:encode-frame :ping (test-octets 126)))
  (signals error (websocket:encode-frame :pong (make-string 126 :initial-element #\a)))
  (signals error (websocket:encode-frame :close ""))
  (signals error (websocket:encode-frame :continuation ""))
  (signals error (websocket:encode-frame :nonsense ""))
  (signals error (websocket:encode-frame :text nil))
  (signals error (websocket:encode-frame :text "a" :mask -1))
  (signals error (websocket:encode-frame-head :close 126))
  (signals error (websocket:encode-frame-head :ping 0 :final-p nil))
  (signals error (websocket:encode-frame-head :nonsense 0))
  (signals error (websocket:encode-frame-head :text -1)))

(test heads-are-made-alone-for-what-is-large
  (is (equalp (hex-octets "82 7F 00 00 00 00 10 00 00 00")
              (websocket:encode-frame-head :binary (expt 2 28))))
  (is (equalp (hex-octets "01 05") (websocket:encode-frame-head :text 5 :final-p nil)))
  (is (equalp (hex-octets "80 7E 00 7E") (websocket:encode-frame-head :continuation 126)))
  (is (equalp (hex-octets "81 85 37 FA 21 3D")
              (websocket:encode-frame-head :text 5 :mask #x3D21FA37)))
  (dolist (size '(0 125 126 65535 65536))
    (let ((head (websocket:encode-frame-head :text size))
          (frame (websocket:encode-frame :text (payload-octets `(:times ,size "*")))))
      (is (equalp head (subseq frame 0 (- (length frame) size))) "~D" size))))

;;; Close

(test close-frames-have-code-and-reason
  (is (equalp (make-frame 8 (close-payload 1000 "bye") :mask nil)
              (websocket:encode-close 1000 "bye")))
  (is (equalp (make-frame 8 (close-payload 4999) :mask nil) (websocket:encode-close 4999)))
  (is (equalp (make-frame 8 (close-payload 1000 "bye"))
              (websocket:encode-close 1000 "bye" #x3D21FA37)))
  (is (equalp (hex-octets "88 00") (websocket:encode-close websocket:+no-close-code+ "bye"))))

(test reasons-are-cut-between-characters
  (flet ((sent (reason)
           (subseq (websocket:encode-close 1000 reason) 4)))
    (dolist (size '(0 1 122 123 124 200))
      (is (= (min size 123) (length (sent (make-string size :initial-element #\a)))) "~D" size))
    ;; A character of two, three or four octets, at each position around the limit.
    (dolist (code '(#xE9 #x20AC #x1F600))
      (let ((octets (character-octets code)))
        (loop for before from 116 to 126
              for reason = (octets-text (octets (make-string before :initial-element #\a)
                                                octets octets))
              for sent = (sent reason)
              do (is (= (length sent)
                        (cond ((<= (+ before (* 2 (length octets))) 123)
                               (+ before (* 2 (length octets))))
                              ((<= (+ before (length octets)) 123) (+ before (length octets)))
                              (t (min 123 before))))
                     "~X after ~D" code before)
                 (is (equalp sent (subseq (text-octets reason) 0 (length sent)))))))))

(test codes-that-are-never-sent-are-errors
  (dolist (code '(0 999 1004 1006 1015 1016 2000 2999 5000 65536 -1 nil))
    (signals error (websocket:encode-close code)))
  (signals error (websocket:encode-close 1000 nil)))

(test each-code-that-may-be-sent-may-be-received
  (flet ((promised (code)
           (if (websocket:close-code-p code)
               (list (list :close code (octets)))
               '((:failure 1002 :invalid-close-code)))))
    (is (null (loop for code from 0 to 5100
                    unless (equalp (promised code)
                                   (events-of-whole (make-frame 8 (close-payload code))))
                      collect code)))))

(test what-a-server-sends-a-client-receives
  (loop for (kind payload)
          in `((:text ,(encode "Hello")) (:binary ,(test-octets 300)) (:ping ,(test-octets 125))
               (:pong ,(octets)))
        do (is (equalp (list (list kind payload))
                       (events-of-whole (websocket:encode-frame kind payload) :role :client)))
           (is (equalp (list (list kind payload))
                       (events-of-whole (websocket:encode-frame kind payload :mask 123456789)))))
  (is (equalp (list (list :close 1001 (encode "bye")))
              (events-of-whole (websocket:encode-close 1001 "bye") :role :client)))
  (is (equalp (list (list :close 1005 (octets)))
              (events-of-whole (websocket:encode-close 1005) :role :client))))
