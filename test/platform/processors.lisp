(in-package #:hunchentoot-recycling-taskmaster-test)

(def-suite processors-of-the-platform :in platform
  :description "The number of processors that this process may use.")

(in-suite processors-of-the-platform)

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

(defmacro share-is (share membership &rest files)
  "Checks that the least limit is SHARE with MEMBERSHIP and FILES."
  `(where-supported
    (call-with-cgroups ,membership ',files
                       (lambda () (is (eql ,share (platform::cgroup-share)))))))

(test without-a-quota-control-groups-limit-nothing
  (share-is nil "0::/" ("cpu.max" "max 100000"))
  (share-is nil "0::/none-there")
  (share-is nil "1:cpu,cpuacct:/" ("cpu/cpu.cfs_quota_us" "-1") ("cpu/cpu.cfs_period_us" "100000")))

(test a-quota-of-either-version-counts
  (share-is 3/2 "0::/" ("cpu.max" "150000 100000"))
  (share-is 1/2 "0::/a/b" ("unified/a/b/cpu.max" "50000 100000"))
  (share-is 2 "3:cpu,cpuacct:/docker" ("cpu,cpuacct/docker/cpu.cfs_quota_us" "200000")
            ("cpu,cpuacct/docker/cpu.cfs_period_us" "100000"))
  (share-is 2 (format nil "4:memory:/m~%3:cpu:/docker/x~%0::/")
            ("cpu/cpu.cfs_quota_us" "200000") ("cpu/cpu.cfs_period_us" "100000")))

(test the-least-quota-of-all-groups-above-counts
  (share-is 2 "0::/a/b" ("a/b/cpu.max" "400000 100000") ("a/cpu.max" "200000 100000")
            ("cpu.max" "max 100000")))

(test a-part-of-a-processor-counts-as-one
  (where-supported
   (call-with-cgroups "0::/" '(("cpu.max" "10000 100000"))
                      (lambda () (is (= 1 (platform:processor-count)))))))

(test files-that-make-no-sense-limit-nothing
  (share-is nil "0::/" ("cpu.max" "")) (share-is nil "0::/" ("cpu.max" "0 0"))
  (share-is nil "0::/" ("cpu.max" "5 0"))
  (share-is nil "nonsense" ("cpu.max" "x y")))

(test parts-of-processors-are-rounded-up-and-the-affinity-is-the-most
  (where-supported
   (with-function (platform::affinity-count (original) 8)
     (loop for (quota count) in '(("150000 100000" 2) ("200000 100000" 2) ("max 100000" 8)
                                  ("2000000 100000" 8))
           do (call-with-cgroups "0::/" `(("cpu.max" ,quota))
                                 (lambda () (is (= count (platform:processor-count)) quota)))))))

(defun allowed-processors ()
  "The number of processors on which the current thread may run, from proc(5)."
  (with-open-file (stream (format nil "/proc/self/task/~D/status" (platform:thread-identity)))
    (loop for line = (read-line stream)
          when (uiop:string-prefix-p "Cpus_allowed:" line)
            return (logcount (parse-integer (remove #\, line) :start (length "Cpus_allowed:")
                                                              :radix 16)))))

(test affinity-counts
  (where-supported
   (is (= (allowed-processors) (platform::affinity-count)))
   (is (<= 1 (platform:processor-count) (platform::affinity-count)))))
