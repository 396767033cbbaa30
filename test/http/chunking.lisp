(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* http-chunking :in http
  :description "Chunks that grow in place.")

(defun lengthen (octets start size count)
  "Lengthens the chunk of SIZE octets at START of OCTETS by COUNT octets of TEST-OCTETS; returns its
end."
  (multiple-value-bind (position end) (http:lengthen-chunk octets start size count)
    (replace octets (test-octets (+ size count)) :start1 position :start2 size)
    end))

(defun chunk-of (size)
  "A chunk with SIZE octets of TEST-OCTETS."
  (octets (format nil "~(~X~)~C~C" size #\Return #\Linefeed) (test-octets size) :crlf))

(test a-chunk-is-whole-however-often-it-was-lengthened
  (dolist (counts '((1) (15 1) (14 1 1 1) (255 1) (200 100) (16 240) (4095 1) (1 4096 1)
                    (5000 60000) (1 1 1 13 240 3840 61440)))
    (let ((octets (make-array 70000 :element-type '(unsigned-byte 8) :initial-element 255))
          (size 0))
      (dolist (count counts)
        (let ((end (lengthen octets 3 size count)))
          (incf size count)
          (is (null (octet-difference (chunk-of size) (subseq octets 3 end))) "~A" counts)
          (is (= 255 (aref octets 2) (aref octets end)) "~A" counts))))))

(test a-chunk-gets-no-more-than-there-is-room-for
  (dolist (room '(0 1 2 3 4 5 6 7 20 21 22 23 300 5000))
    (let ((octets (test-octets (+ room 2))))
      (loop for size = 0 then (+ size step)
            for step = (min 7 (http:chunk-room size room))
            while (plusp step)
            do (is (<= (lengthen octets 2 size step) (+ 2 room)))
            finally (is (<= (- room 10) size) "Little room of ~D is left." room)))))

(test a-chunk-that-does-not-fit-is-refused
  (signals error (http:lengthen-chunk (test-octets 6) 0 0 2))
  (signals error (http:lengthen-chunk (test-octets 6) 1 0 1))
  (is (= 6 (nth-value 1 (http:lengthen-chunk (test-octets 6) 0 0 1)))))

(test octets-become-a-whole-chunk
  (dolist (size '(1 9 15 16 255 256 4095 4096 65536 70000))
    (is (null (octet-difference (chunk-of size) (http:chunk-of (test-octets size)))))))
