(in-package #:hunchentoot-recycling-taskmaster-test)

;;; Messages to octets: RFC 6455, section 5.2.

(def-suite* websocket-encoder :in websocket
  :description "Frames as they are sent.")

(test frames-are-the-rfcs
  (is (equalp (hex-octets "81 05 48 65 6C 6C 6F") (websocket:encode-frame :text "Hello")))
  (is (equalp (hex-octets "89 05 48 65 6C 6C 6F") (websocket:encode-frame :ping "Hello")))
  (is (equalp (hex-octets "8A 00") (websocket:encode-frame :pong (octets))))
  (is (equalp (hex-octets "81 85 37 FA 21 3D 7F 9F 4D 51 58")
              (websocket:encode-frame :text "Hello" :mask #x3D21FA37))))

(test frames-are-as-others-make-them
  "All sizes near a limit of the format, with and without a mask."
  (dolist (size '(0 1 3 7 8 9 124 125 126 127 128 65535 65536 65537))
    (let ((payload (test-octets size)))
      (is (equalp (make-frame 2 payload :mask nil) (websocket:encode-frame :binary payload))
          "~D" size)
      (is (equalp (make-frame 2 payload) (websocket:encode-frame :binary payload :mask #x3D21FA37))
          "~D" size))))

(test texts-go-in-utf-8-and-octets-from-any-vector
  (let ((text (map 'string #'code-char '(97 #xE9 #x20AC #xFFFD 122))))
    (is (equalp (make-frame 1 (hex-octets "61 C3 A9 E2 82 AC EF BF BD 7A") :mask nil)
                (websocket:encode-frame :text text)))
    (is (equalp (websocket:encode-frame :text text)
                (websocket:encode-frame :text (text-octets text)))))
  (is (equalp (make-frame 1 (octets) :mask nil) (websocket:encode-frame :text "")))
  (is (equalp (make-frame 1 (encode "abc") :mask nil)
              (websocket:encode-frame :text (make-array 3 :element-type 'character
                                                          :adjustable t :fill-pointer 3
                                                          :initial-contents "abc"))))
  (let ((octets (make-array 5 :element-type '(unsigned-byte 8) :adjustable t :fill-pointer 3
                              :initial-contents '(1 2 3 4 5))))
    (is (equalp (make-frame 2 (as-octets '(1 2 3)) :mask nil)
                (websocket:encode-frame :binary octets)))))

(test what-must-not-be-sent-is-an-error
  (loop for arguments in `((:text nil) (:ping ,(test-octets 126)) (:continuation "")
                           (:nonsense "") (:text "a" :mask -1))
        do (signals error (apply #'websocket:encode-frame arguments))))

;;; Close

(test close-frames-have-code-and-reason
  (is (equalp (make-frame 8 (close-payload 1000 "bye") :mask nil)
              (websocket:encode-close 1000 "bye")))
  (is (equalp (make-frame 8 (close-payload 4999) :mask nil) (websocket:encode-close 4999)))
  (is (equalp (make-frame 8 (close-payload 1000 "bye"))
              (websocket:encode-close 1000 "bye" #x3D21FA37)))
  (is (equalp (hex-octets "88 00") (websocket:encode-close websocket:+no-close-code+ "bye"))))

(test reasons-are-cut-between-characters
  (dolist (code '(97 #xE9 #x20AC #x1F600)) ; a character of each length, at each place
    (let ((character (character-octets code)))
      (loop for before from 116 to 126
            for octets = (octets (make-string before :initial-element #\a) character character)
            for sent = (subseq (websocket:encode-close 1000 (octets-text octets)) 4)
            do (is (= (length sent)
                      (loop for whole in '(2 1 0)
                            for end = (+ before (* whole (length character)))
                            when (<= end 123) return end
                            finally (return 123)))
                   "~X after ~D" code before)
               (is (equalp sent (subseq octets 0 (length sent))))))))

(test codes-are-sent-and-received-that-may-be
  "7.4, and the registry."
  (flet ((sent-p (code)
           (handler-case (equalp (make-frame 8 (close-payload code) :mask nil)
                                 (websocket:encode-close code))
             (error () nil))))
    (is (null (loop for code from 0 to 5100
                    for may-be-p = (or (<= 1000 code 1003) (<= 1007 code 1014)
                                       (<= 3000 code 4999))
                    unless (and (equalp (if may-be-p
                                            (list (list :close code (octets)))
                                            '((:failure 1002)))
                                        (events-of-whole (make-frame 8 (close-payload code))))
                                (or (= code websocket:+no-close-code+) (eq may-be-p (sent-p code))))
                      collect code))))
  (signals error (websocket:encode-close nil))
  (signals error (websocket:encode-close 1000 nil)))
