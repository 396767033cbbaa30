(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite* platform :in all
  :description "Functions of the interface to the operating system that need none.")

(test the-ready-engine-is-there-where-its-words-are-wide-enough
  (is (eq (and (uiop:featurep '(:and :sbcl :linux :64-bit :little-endian)) t)
          (platform:readiness-supported-p))))

;;; Processors that this process may use

(defun call-with-cgroups (membership files function)
  "Calls FUNCTION while the system seems to have MEMBERSHIP, lines about control groups, and FILES,
pairs of a name and contents, for those groups."
  (with-directory (root)
    (write-file root "membership" membership)
    (loop for (name contents) in files
          do (write-file root name contents))
    (with-globals ((platform::*cgroup-membership* (namestring (merge-pathnames "membership" root)))
                   (platform::*cgroup-root* (namestring root)))
      (funcall function))))

(test the-quota-of-the-control-group-counts
  (where-supported
   (loop for (share membership . files)
           in `((nil "0::/" ("cpu.max" "max 100000"))
                (nil "0::/none-there")
                (3/2 "0::/" ("cpu.max" "150000 100000"))
                (1/2 ,(format nil "1:name=systemd:/x~%0::/a/b") ("a/b/cpu.max" "50000 100000"))
                (4 "0::/a/b" ("a/b/cpu.max" "400000 100000") ("a/cpu.max" "200000 100000"))
                ;; Files that make no sense limit nothing.
                (nil "0::/" ("cpu.max" "")) (nil "0::/" ("cpu.max" "0 0"))
                (nil "0::/" ("cpu.max" "5 0")) (nil "nonsense" ("cpu.max" "x y")))
         do (call-with-cgroups membership files
                               (lambda () (is (eql share (platform::cgroup-share)) "~A" files))))))

(test a-part-of-a-processor-counts-as-one-and-the-affinity-is-the-most
  (where-supported
   (let ((allowed (with-open-file (stream (format nil "/proc/self/task/~D/status"
                                                  (platform:thread-identity)))
                    (loop for line = (read-line stream)
                          when (uiop:string-prefix-p "Cpus_allowed:" line)
                            return (logcount (parse-integer (remove #\, line) :start 13
                                                                              :radix 16))))))
     (loop for (quota count) in `(("10000 100000" 1) ("100000 100000" 1) ("max 100000" ,allowed)
                                  ("1 1" 1) ("90000000 100000" ,allowed))
           do (call-with-cgroups "0::/" `(("cpu.max" ,quota))
                                 (lambda () (is (= count (platform:processor-count)) quota)))))))

;;; What accept says

(test what-accept-says-is-known-by-its-number
  (loop for (number kind) in '((11 :none) (4 :none) (103 :none) (71 :none) (100 :none)
                               (101 :none) (112 :none) (113 :none) (24 :exhausted)
                               (23 :exhausted) (105 :exhausted) (12 :exhausted) (22 :other)
                               (9 :other) (1 :other) (9999 :other) (nil :other))
        do (is (eq kind (platform:accept-error-kind number)) "~A" number)))

;;; Time

(test no-number-that-many-threads-count-is-lost
  (let ((counter (platform:make-counter)))
    (flet ((count-up ()
             (loop repeat 20000 do (platform:counter-add counter 1))))
      (mapc #'task-result (loop repeat 4 collect (in-background ("count") (count-up)))))
    (is (= 80000 (platform:counter-count counter)))))

(test seconds-are-rounded-up-and-a-past-end-is-no-time
  (is (null (platform:as-milliseconds nil)))
  (is (= 1 (platform:as-milliseconds 1/10000)))
  (is (null (platform:milliseconds-left nil)))
  (is (zerop (platform:milliseconds-left (- (platform:milliseconds) 1000))))
  (is (<= 1 (platform:milliseconds-left (+ (platform:milliseconds) 100000)) 100000)))
