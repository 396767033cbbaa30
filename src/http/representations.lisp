(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; Which representation a client gets: media types of files, content codings, conditions, ranges.

(defparameter *file-types*
  '(("text/html" "html" "htm") ("text/css" "css") ("text/javascript" "js" "mjs" "cjs")
    ("text/plain" "txt" "text" "log") ("text/csv" "csv") ("text/tab-separated-values" "tsv")
    ("text/markdown" "md") ("text/vtt" "vtt") ("text/calendar" "ics") ("text/x-vcard" "vcf")
    ("application/json" "json" "map") ("application/ld+json" "jsonld")
    ("application/geo+json" "geojson") ("application/manifest+json" "webmanifest")
    ("application/xml" "xml" "xsl") ("application/xhtml+xml" "xhtml")
    ("application/rss+xml" "rss") ("application/atom+xml" "atom") ("application/wasm" "wasm")
    ("application/pdf" "pdf") ("application/postscript" "ps" "eps" "ai") ("text/rtf" "rtf")
    ("application/epub+zip" "epub") ("application/msword" "doc")
    ("application/vnd.openxmlformats-officedocument.wordprocessingml.document" "docx")
    ("application/vnd.ms-excel" "xls")
    ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet" "xlsx")
    ("application/vnd.ms-powerpoint" "ppt")
    ("application/vnd.openxmlformats-officedocument.presentationml.presentation" "pptx")
    ("application/vnd.oasis.opendocument.text" "odt")
    ("application/vnd.oasis.opendocument.spreadsheet" "ods")
    ("application/vnd.oasis.opendocument.presentation" "odp")
    ("application/zip" "zip") ("application/gzip" "gz" "tgz") ("application/x-tar" "tar")
    ("application/zstd" "zst") ("application/x-xz" "xz") ("application/x-bzip2" "bz2")
    ("application/x-7z-compressed" "7z")
    ("image/png" "png") ("image/apng" "apng") ("image/jpeg" "jpg" "jpeg") ("image/gif" "gif")
    ("image/svg+xml" "svg") ("image/webp" "webp") ("image/avif" "avif") ("image/jxl" "jxl")
    ("image/bmp" "bmp") ("image/tiff" "tif" "tiff") ("image/vnd.microsoft.icon" "ico")
    ("font/woff" "woff") ("font/woff2" "woff2") ("font/ttf" "ttf") ("font/otf" "otf")
    ("audio/mpeg" "mp3") ("audio/mp4" "m4a") ("audio/aac" "aac") ("audio/flac" "flac")
    ("audio/midi" "mid" "midi") ("audio/ogg" "ogg" "oga" "opus") ("audio/wav" "wav")
    ("video/mp4" "mp4" "m4v") ("video/mpeg" "mpeg" "mpg") ("video/webm" "webm")
    ("video/ogg" "ogv") ("video/quicktime" "mov") ("application/vnd.apple.mpegurl" "m3u8"))
  "Media types of files, each with its file name extensions.  For an extension that Hunchentoot
knows, its handlers keep Hunchentoot's type; see docs/differences.md.")

(defparameter *types-by-end*
  (let ((table (make-hash-table :test 'equalp)))
    (loop for (type . ends) in *file-types*
          for in-utf-8 = (format nil "~A~:[~;; charset=utf-8~]" type (eql 0 (search "text/" type)))
          do (dolist (end ends)
               (setf (gethash end table) (cons type in-utf-8))))
    table)
  "Media types without and with a charset, in a pair, by extension, regardless of case.")

(defun media-type-of-file (pathname &optional charset-p)
  "The media type, a string, of the file PATHNAME by its extension; NIL for an unknown one.  If
CHARSET-P, text has UTF-8 as its charset."
  (let ((types (gethash (pathname-type pathname) *types-by-end*)))
    (if charset-p (cdr types) (car types))))

;;; The content codings that a client accepts (RFC 9110, section 12.5.3)

(defparameter *codings* '((:br "br") (:zstd "zstd") (:gzip "gzip" "x-gzip"))
  "The content codings of files, the one that compresses best first, and their names (RFC 9110,
section 8.4.1; RFC 7932; RFC 8878).")

(defun coding-name (coding)
  "The name of CODING, :BR, :ZSTD or :GZIP, a string, for Content-Encoding (RFC 9110, section 8.4)."
  (second (assoc coding *codings*)))

(defun element-weight (element)
  "The weight of ELEMENT, of a list, in thousandths: 1000 where it has none, 0 where that is
malformed (RFC 9110, section 12.4.2)."
  (let* ((end (position #\; element))
         (start (and end (search "q=" element :start2 end :test #'char-equal)))
         (digits (if start (string-trim '(#\Space #\Tab) (subseq element (+ 2 start))) "1"))
         (weight (and (<= 1 (length digits) 5)
                      (or (= 1 (length digits)) (char= #\. (char digits 1)))
                      (decimal-number (concatenate 'string (remove #\. digits) "000") 0 4))))
    (if (and weight (<= weight 1000)) weight 0)))

(defun accepted-codings (value &optional (codings (mapcar #'first *codings*)))
  "Those of CODINGS that VALUE, the text of Accept-Encoding or NIL, accepts, and likes no worse than
none: a list.  The one with the greatest weight is first; among equals, the first of CODINGS."
  (let ((weights (loop for element in (list-elements (or value ""))
                       collect (cons (string-right-trim '(#\Space #\Tab)
                                                        (subseq element 0 (position #\; element)))
                                     (element-weight element)))))
    (flet ((weight (&rest names)
             (cdr (assoc-if (lambda (name) (member name names :test #'string-equal)) weights))))
      (loop with least = (max 1 (or (weight "identity") 0))
            for coding in codings
            for weight = (or (apply #'weight (rest (assoc coding *codings*))) (weight "*") 0)
            when (>= weight least)
              collect (cons coding weight) into accepted
            finally (return (mapcar #'car (stable-sort accepted #'> :key #'cdr)))))))

(defparameter *compressible-types*
  '("text/*" "*+json" "*+xml" "application/json" "application/xml" "application/javascript"
    "application/wasm")
  "The media types of content that compression makes shorter.")

(defun media-type-among-p (value types)
  "True if VALUE, the text of Content-Type, has one of the media TYPES: strings, which * may begin
or end.  None with that means events, each of which would have to be compressed by itself."
  (let ((type (string-right-trim '(#\Space #\Tab) (subseq value 0 (position #\; value)))))
    (flet ((fits-p (pattern)
             (let ((rest (- (length pattern) 1)))
               (cond ((string-equal pattern type))
                     ((string-equal type "text/event-stream") nil)
                     ((char= #\* (char pattern 0))
                      (and (>= (length type) rest)
                           (string-equal pattern type :start1 1 :start2 (- (length type) rest))))
                     ((char= #\* (char pattern rest))
                      (and (>= (length type) rest)
                           (string-equal pattern type :end1 rest :end2 rest)))))))
      (some #'fits-p types))))

(defun coded-tag (tag coding)
  "TAG, the entity tag of a file that has CODING, a string, so that it differs from that of a file
which has another (RFC 9110, section 8.8.3.3).  TAG itself if TAG or CODING is NIL."
  (if (and tag coding)
      (let ((end (1- (length tag))))
        (format nil "~A-~A~A" (subseq tag 0 end) (coding-name coding) (subseq tag end)))
      tag))

(defun unmarked-tags (list coding)
  "LIST, the text of If-Match or If-None-Match, without the marks by which CODED-TAG tells CODING."
  (let ((mark (format nil "-~A\"" (coding-name coding))))
    (with-output-to-string (stream)
      (loop for start = 0 then (+ place (length mark))
            for place = (search mark list :start2 start)
            do (write-string list stream :start start :end place)
            while place
            do (write-char #\" stream)))))

;;; Conditional requests and range requests for content with a known size and time of change

(defun entity-tag (seconds nanoseconds size strong-p)
  "An entity tag, a string, for content of SIZE octets that last changed at SECONDS, a universal
time, and NANOSECONDS.  The tag does not depend on the place of the file.  STRONG-P is true if any
further change is sure to give the content another time; else the tag is weak (RFC 9110, section
8.8.3)."
  (format nil "~:[W/~;~]\"~(~36R-~36R-~36R~)\"" strong-p seconds nanoseconds size))

(defun tag-weak-p (tag)
  (uiop:string-prefix-p "W/" tag))

(defun tag-listed-p (tag list strong-p)
  "True if TAG is in LIST, the text of If-Match or If-None-Match.  The comparison is strong if
STRONG-P, else weak (RFC 9110, section 8.8.3.2).  If TAG is NIL, it is only in \"*\"."
  (declare (type (or null string) tag) (type string list))
  (or (string= list "*")
      (and tag
           ;; A comma within a tag splits it into pieces, but none of the pieces is a valid tag.
           (some (lambda (other)
                   (if strong-p
                       (and (string= tag other) (not (tag-weak-p tag)))
                       (string= tag other :start1 (if (tag-weak-p tag) 2 0)
                                          :start2 (if (tag-weak-p other) 2 0))))
                 (list-elements list)))))

(defun precondition (head headers tag date)
  "Evaluates the preconditions in HEADERS, an alist, of the request HEAD for content with the entity
TAG that last changed at DATE, both strings or NIL.  Returns :PROCEED, :NOT-MODIFIED (304) or
:FAILED (412) (RFC 9110, section 13.2.2)."
  (let ((if-match (cdr (assoc :if-match headers)))
        (if-none-match (cdr (assoc :if-none-match headers)))
        (retrieval-p (member (head-method head) '(:get :head))))
    (cond ((and if-match (not (tag-listed-p tag if-match t)))
           :failed)
          ((if if-none-match
               (tag-listed-p tag if-none-match nil)
               (and retrieval-p date (equal date (head-header head :if-modified-since))))
           (if retrieval-p :not-modified :failed))
          (t :proceed))))

(defun range-current-p (head tag)
  "True if If-Range in the request HEAD is absent or is TAG, a strong entity tag of the content, so
that its Range applies.  TAG is a string or NIL.  A date never matches: a version of the same
second, or with another coding, may have the same one (RFC 9110, sections 8.8.2.2 and 13.1.5)."
  (let ((validator (head-header head :if-range)))
    (or (null validator)
        (and tag (not (tag-weak-p tag)) (string= tag validator)))))

(defparameter *most-ranges* 8
  "The maximum number of ranges that a client gets of one file; of more, it gets all.")

(defun parse-range (spec size)
  "The positions of the first and the last octet, in a pair, that SPEC, an element of Range, asks
for, in content of SIZE octets; NIL if SPEC is malformed (RFC 9110, section 14.1.2)."
  (let ((dash (position #\- spec)))
    (when (and dash (every #'digit-char-p (remove #\- spec :count 1)))
      (let ((first (decimal-number spec 0 dash))
            (last (decimal-number spec (1+ dash) (length spec))))
        (cond ((and first last) (cons first last))
              (first (cons first (1- size)))
              (last (cons (max 0 (- size last)) (1- size)))))))) ; so many at the end

(defun parse-ranges (value size)
  "The ranges, pairs of the positions of their first and last octets, that VALUE, the text of Range,
asks for, in its order, and that content of SIZE octets has.  One that ends behind the content is
cut only if it is one of several: Hunchentoot refuses a single one.  :ALL where all is to be sent:
VALUE is malformed, or asks for too many ranges, or for more octets than there are (RFC 9110,
section 14.2)."
  (let* ((specs (and (>= (length value) 6)
                     (string-equal "bytes=" value :end2 6)
                     (remove "" (list-elements (subseq value 6)) :test #'string=)))
         (parsed (loop for spec in specs collect (parse-range spec size)))
         (ranges (loop for (first . end) in (remove nil parsed)
                       for last = (if (rest specs) (min end (1- size)) end)
                       when (<= first last (1- size))
                         collect (cons first last))))
    (if (or (null specs)
            (member nil parsed)
            (> (length ranges) *most-ranges*)
            (> (loop for (first . last) in ranges sum (- last first -1)) size))
        :all
        ranges)))
