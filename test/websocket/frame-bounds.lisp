(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite websocket-frame-bounds :in websocket
  :description "The ends of frames, and the payloads of close frames.")

(in-suite websocket-frame-bounds)

(defun extents-of (frame)
  "The results of FRAME-EXTENT as FRAME arrives octet by octet, after one octet of another frame:
the number of octets after which the extent is known, and the extent."
  (let* ((octets (concatenate 'base:octets #(255) frame))
         (known (loop for end from 1 to (length octets)
                      when (nth-value 1 (websocket:frame-extent octets 1 end))
                        return end)))
    (loop for end from 1 below known
          do (is (<= (- end 1) (websocket:frame-extent octets 1 end) (length frame))))
    (list (1- known) (websocket:frame-extent octets 1 known))))

(test the-extent-of-a-frame-is-known-when-its-length-has-come
  (loop for (length mask . extents) in '((0 nil 2 2) (125 nil 2 127) (126 nil 4 130)
                                         (65535 nil 4 65539) (65536 nil 10 65546) (0 1 2 6)
                                         (125 1 2 131) (126 1 4 134) (65536 1 10 65550))
        do (is (equal extents
                      (extents-of (websocket:encode-frame :binary (test-octets length) :mask mask)))
               "~D ~A" length mask)))

(test lengths-of-64-bits-are-told
  (is (= (+ 14 (1- (expt 2 64)))
         (websocket:frame-extent (coerce '(#x82 255 255 255 255 255 255 255 255 255) 'base:octets)
                                 0 10))))

(test whole-frames-are-told-from-parts-and-from-several
  (let ((frame (websocket:encode-frame :text "one" :mask 7)))
    (is (websocket:whole-frame-p frame))
    (is (not (websocket:whole-frame-p (subseq frame 0 (1- (length frame))))))
    (is (not (websocket:whole-frame-p (concatenate 'base:octets frame frame))))
    (is (not (websocket:whole-frame-p (coerce '() 'base:octets))))))

(test frames-of-messages-are-told-from-others
  (flet ((kinds (first-octet)
           (let ((frame (coerce (list first-octet 0) 'base:octets)))
             (list (and (websocket:control-frame-p frame) t)
                   (websocket:continuation-frame-p frame)))))
    (is (equal '((nil t) (nil t) (nil nil) (nil nil) (t nil) (t nil) (t nil))
               (mapcar #'kinds '(#x80 0 #x81 2 #x88 #x89 #x8A))))))

(test close-frames-tell-their-payload
  (dolist (mask '(nil #xA1B2C3D4))
    (let ((payload (websocket:close-frame-payload (websocket:encode-close 4000 "why" mask))))
      (is (equalp (octets (vector 15 160) "why") payload))
      (is (= 4000 (websocket:close-payload-code payload)))))
  (is (= 1005 (websocket:close-payload-code
               (websocket:close-frame-payload (websocket:encode-close 1005)))))
  (dolist (other (list (websocket:encode-frame :text "no") (websocket:encode-frame :ping "")
                       (subseq (websocket:encode-close 1000 "cut") 0 6)
                       (coerce '(#x08 0) 'base:octets) (coerce '(#x88) 'base:octets)))
    (is (null (websocket:close-frame-payload other)))))

(test close-frames-are-made-as-from-a-client
  (loop for (code reason) in '((1000 "") (1001 "The server stops.") (1005 ""))
        do (multiple-value-bind (kind end value more)
               (let ((frame (websocket:client-close-frame (websocket:close-payload code reason))))
                 (websocket:decode-message (websocket:make-message-decoder) frame 0 (length frame)))
             (declare (ignore end))
             (is (equal (list :close code reason) (list kind value more)))))
  (is (equalp #(#x88 #x82 0 0 0 0 3 238)
              (websocket:client-close-frame (websocket:close-payload 1006 "")))))

(test codes-of-failures-are-told-from-those-of-ends
  (dolist (code '(1002 1003 1007 1008 1009 1010 1011))
    (is (websocket:failure-code-p code)))
  (dolist (code '(1000 1001 1005 3000 4999))
    (is (not (websocket:failure-code-p code)))))

(test payloads-are-as-long-as-they-are-said-to-be
  (dolist (mask '(nil 7))
    (dolist (length '(0 125 126 65535 65536))
      (is (= length (websocket:frame-payload-size
                     (websocket:encode-frame :binary (test-octets length) :mask mask)))))))

(test close-frames-for-programs-are-no-longer-than-they-may-be
  (loop for (length told) in '((0 0) (1 1) (2 2) (125 125) (126 2) (300 2))
        do (let* ((payload (coerce (test-octets length) 'base:octets))
                  (frame (websocket:client-close-frame payload)))
             (is-true (websocket:whole-frame-p frame))
             (is (equalp (subseq payload 0 told) (websocket:close-frame-payload frame))
                 "~D" length))))
