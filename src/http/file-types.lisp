(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The media types of files, by file name extension.

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
