(in-package #:hunchentoot-recycling-taskmaster.http)

;;;; The media types of files, by file name extension.

(defparameter *file-types*
  '(("text/html" "html" "htm") ("text/css" "css") ("text/javascript" "js" "mjs")
    ("text/plain" "txt" "text" "log") ("text/csv" "csv") ("text/markdown" "md")
    ("text/calendar" "ics") ("application/json" "json" "map") ("application/xml" "xml" "xsl")
    ("application/xhtml+xml" "xhtml") ("application/rss+xml" "rss") ("application/atom+xml" "atom")
    ("application/pdf" "pdf") ("application/wasm" "wasm")
    ("application/manifest+json" "webmanifest") ("application/zip" "zip")
    ("application/gzip" "gz" "tgz") ("image/png" "png") ("image/jpeg" "jpg" "jpeg")
    ("image/gif" "gif") ("image/svg+xml" "svg") ("image/webp" "webp") ("image/avif" "avif")
    ("image/bmp" "bmp") ("image/tiff" "tif" "tiff") ("image/vnd.microsoft.icon" "ico")
    ("font/woff" "woff") ("font/woff2" "woff2") ("font/ttf" "ttf") ("font/otf" "otf")
    ("audio/mpeg" "mp3") ("audio/ogg" "ogg" "oga" "opus") ("audio/wav" "wav")
    ("video/mp4" "mp4" "m4v") ("video/webm" "webm") ("video/ogg" "ogv"))
  "Media types of files, each with its file name extensions.")

(defun table-of-file-types ()
  (let ((table (make-hash-table :test 'equalp)))
    (loop for (type . ends) in *file-types*
          do (dolist (end ends)
               (setf (gethash end table) type)))
    table))

(defparameter *types-by-end* (table-of-file-types)
  "Media types by extension, regardless of case.")

(defun media-type-of-file (pathname)
  "The media type, a string, of the file PATHNAME by its extension; NIL for an unknown one."
  (values (gethash (pathname-type pathname) *types-by-end*)))
