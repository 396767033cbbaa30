(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* spools :in all
  :description "Octets that wait in memory or a temporary file until they are read.")

(defmacro with-spool ((spool) &body body)
  `(let ((,spool (server::make-spool)))
     (unwind-protect (progn ,@body)
       (server::clear-spool ,spool))))

(defun read-from-spool (spool count)
  "Up to COUNT octets of SPOOL."
  (let ((octets (as-octets (make-list count :initial-element 0))))
    (subseq octets 0 (server::read-spool spool octets 0 count))))

(defun append-pieces (spool octets random-state most)
  "Appends OCTETS to SPOOL in pieces of random sizes up to MOST; true when all had room."
  (loop with start = 0
        while (< start (length octets))
        always (let ((end (min (length octets) (+ start 1 (random most random-state)))))
                 (prog1 (server::append-to-spool spool octets start end)
                   (setf start end)))))

(defun read-pieces (spool random-state most)
  "All octets of SPOOL, read in pieces of random sizes up to MOST."
  (apply #'concatenate 'wire
         (loop for piece = (read-from-spool spool (1+ (random most random-state)))
               until (zerop (length piece))
               collect piece)))

(define-server-test (a-spool-hands-out-what-it-got-in-memory-and-in-files :needs :parking)
  (let ((seed (fresh-seed)))
    (dotimes (round 60)
      (let ((random-state (seeded-state (+ seed round)))
            (server::*spool-memory* 1000))
        (with-spool (spool)
          (let ((octets (as-octets (loop repeat (random 4000 random-state)
                                         collect (random 256 random-state)))))
            (is (append-pieces spool octets random-state 700))
            (is (= (length octets) (server::spool-left spool)))
            (is (eq (> (length octets) 1000) (and (server::spool-file spool) t)))
            (is (equalp octets (read-pieces spool random-state 900)) "Seed ~D" (+ seed round))
            (is (zerop (server::spool-left spool)))))))))

(define-server-test (a-spool-that-gets-no-file-says-so-and-keeps-what-it-has :needs :parking)
  (let ((server::*spool-memory* 10))
    (with-function (platform:open-temporary-file (original) -24)
      (with-spool (spool)
        (is-true (server::append-to-spool spool (octets "12345678") 0 8))
        (is (not (server::append-to-spool spool (octets "90ab") 0 4)))
        (is-true (server::append-to-spool spool (octets "90ab") 0 2))
        (is (equalp (octets "1234567890") (read-from-spool spool 20)))))))

(define-server-test (a-spool-whose-file-is-full-says-so-and-keeps-what-it-has :needs :parking)
  (let ((server::*spool-memory* 10))
    (with-spool (spool)
      (is-true (server::append-to-spool spool (octets "1234567890ab") 0 12))
      (with-function (platform:write-file-octets (original file position octets start end) nil)
        (is (not (server::append-to-spool spool (octets "cd") 0 2))))
      (is (equalp (octets "1234567890ab") (read-from-spool spool 20))))))

(define-server-test (a-spool-that-cannot-be-moved-stays-in-memory :needs :parking)
  (with-spool (spool)
    (server::append-to-spool spool (octets "12345678") 0 8)
    (with-function (platform:write-file-octets (original file position octets start end) nil)
      (is (not (server::move-to-file spool))))
    (is (equalp (octets "12345678") (read-from-spool spool 20)))))

(define-server-test (the-memory-of-spools-is-accounted-for :needs :parking)
  (let ((before (platform:counter-count server::*reserved-memory*)))
    (with-spool (spool)
      (server::append-to-spool spool (test-octets 5000) 0 5000)
      (is (<= (+ before 5000) (server::account-for-memory spool)))
      (is-true (server::move-to-file spool))
      (is (= before (server::account-for-memory spool))))
    (is (= before (platform:counter-count server::*reserved-memory*)))))
