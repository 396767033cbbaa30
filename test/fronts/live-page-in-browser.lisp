(in-package #:hunchentoot-recycling-taskmaster-test)

;;;; The live page in Chromium, without a screen, through its DOM.  The browser is spoken to by the
;;;; DevTools protocol, over a WebSocket.  Where there is no Chromium (a third of a gigabyte), the
;;;; tests are skipped.

(def-suite* live-page-in-a-browser :in fronts
  :description "The live page in Chromium; skipped where that is not installed.")

(defstruct (browser (:constructor make-browser (talk)))
  "A page of a browser."
  talk (count 0))

(defun browser-place (program)
  "The port of the browser PROGRAM, an integer, once it has printed that."
  (eventually ("a browser" :patience (* 3 *patience*))
    (cl-ppcre:register-groups-bind ((#'parse-integer port))
        ("DevTools listening on ws://127\\.0\\.0\\.1:(\\d+)/" (program-text program "errors"))
      port)))

(defun page-target (port)
  "The path of the WebSocket of the page of the browser at PORT."
  (eventually ("the page of a browser")
    (cl-ppcre:register-groups-bind (path)
        ("\"type\": *\"page\",[^}]*\"webSocketDebuggerUrl\": *\"ws://[^/]*(/[^\"]*)\""
         (with-connection (connection port)
           (exchange-text connection "/json" :headers '(("Connection" . "close")))))
      path)))

(defun command (browser method parameters)
  "The answer of BROWSER, a string of JSON, to METHOD with PARAMETERS, a string of JSON."
  (let ((id (incf (browser-count browser))))
    (tell (browser-talk browser)
          (format nil "{\"id\":~D,\"method\":\"~A\",\"params\":~A}" id method parameters))
    (loop with start = (format nil "{\"id\":~D," id)
          for text = (hear-text (browser-talk browser))
          do (unless (stringp text)
               (error 'broken-response :what "the browser has ended"))
          when (eql 0 (search start text))
            return text)))

(defun evaluated (browser script)
  "The value, as a string, of SCRIPT in the page of BROWSER.  Neither may have quotation marks."
  (let ((answer (command browser "Runtime.evaluate"
                         (format nil "{\"returnByValue\":true,\"expression\":\"String(~A)\"}"
                                 (substitute #\Space #\Newline script)))))
    (or (cl-ppcre:register-groups-bind (value) ("\"value\":\"([^\"]*)\"" answer) value)
        (error 'broken-response :what answer))))

(defun await-in-page (browser script &optional (meanwhile (constantly nil)))
  "Waits until SCRIPT is true in the page of BROWSER.  Calls the function MEANWHILE before each
look."
  (eventually ((format nil "~A in a browser" script) :patience (* 3 *patience*))
    (funcall meanwhile)
    (equal "true" (evaluated browser (format nil "Boolean(~A)" script)))))

(defun press (browser key code)
  "Presses KEY, whose number is CODE."
  (dolist (type '("keyDown" "keyUp"))
    (command browser "Input.dispatchKeyEvent"
             (format nil "{\"type\":\"~A\",\"key\":\"~A\",\"windowsVirtualKeyCode\":~D}"
                     type key code))))

(defun emulate (browser &key (width 1280) (height 900) (scheme "light"))
  "Gives the window of BROWSER WIDTH and HEIGHT in pixels, and the theme SCHEME."
  (command browser "Emulation.setDeviceMetricsOverride"
           (format nil "{\"width\":~D,\"height\":~D,\"deviceScaleFactor\":1,\"mobile\":false}"
                   width height))
  (command browser "Emulation.setEmulatedMedia"
           (format nil "{\"features\":[{\"name\":\"prefers-color-scheme\",\"value\":\"~A\"}]}"
                   scheme)))

(defun navigate (browser path)
  "Opens PATH of *SERVER* in BROWSER."
  (command browser "Page.navigate"
           (format nil "{\"url\":\"http://127.0.0.1:~D~A\"}" (port-of *server*) path)))

(defun call-with-browser (function)
  "Calls FUNCTION with a browser that shows /live of *SERVER*; or skips the test."
  (let ((chromium (some #'program-named '("chromium" "chromium-browser" "google-chrome"))))
    (if (null chromium)
        (skip "There is no Chromium: apt-get install chromium")
        (call-with-command
         (lambda (program)
           (let ((port (browser-place program)))
             (with-connection (connection port)
               (let ((browser (make-browser
                               (open-talk connection
                                          :handshake (list :target (page-target port)
                                                           :host (format nil "127.0.0.1:~D"
                                                                         port))))))
                 (emulate browser)
                 (navigate browser "/live")
                 (await-in-page browser "document.querySelector('#state')?.dataset.state == 'live'")
                 (funcall function browser)))))
         (lambda (directory)
           (list chromium "--headless=new" "--no-sandbox" "--disable-gpu"
                 "--remote-debugging-port=0"
                 (format nil "--user-data-dir=~A" (uiop:native-namestring directory))
                 "about:blank"))))))

(defmacro with-browser ((browser) &body body)
  "Evaluates BODY with BROWSER bound to a browser that shows /live of *SERVER*."
  `(call-with-browser (lambda (,browser) ,@body)))

(defun check-backtrace-by-keys (browser)
  "Checks that keys open and close the backtrace of the one worker that serves a request."
  (press browser "w" 87)
  (await-in-page browser "document.activeElement.tagName == 'TR'")
  ;; Rows come and go, so it may be any number of keys away.
  (await-in-page browser "(row => { row?.focus(); return document.activeElement == row; })(
                            [...document.querySelectorAll('#rows tr')]
                              .find(row => row.textContent.includes('/slow')))")
  (press browser "Enter" 13)
  (await-in-page browser "document.querySelector('#where').open")
  (await-in-page browser "[...document.querySelectorAll('#where-frames li')]
                            .some(line => line.textContent.includes('wait-for-release'))")
  (press browser "Escape" 27)
  (await-in-page browser "!document.querySelector('#where').open")
  (is (equal "TR" (evaluated browser "document.activeElement.tagName"))
      "The focus is back where it was."))

(define-front-test (a-browser-shows-what-the-server-does :fronts (:hunchentoot) :modes (:plain)
                                                         :needs :parking)
  (let ((target "/slow?<img/src=x/onerror=document.title=1><script>document.title=2</script>"))
    (while-slow (page target)
      (with-browser (browser)
        (await-in-page browser (format nil "document.querySelector('tr.busy td.request span')
                                              ?.textContent == '~A'" target))
        (is (equal "0 1" (evaluated browser "document.images.length + ' ' +
                                             document.scripts.length")))
        (is (equal "Live" (evaluated browser "document.title.slice(0, 4)")))
        (check-backtrace-by-keys browser)
        (await-in-page browser
                       "parseFloat(document.querySelector('#tile-rate span').textContent) > 0"
                       (lambda () (ask "/word")))
        (is (equal (format nil "127.0.0.1:~D" (port-of *server*))
                   (evaluated browser "document.querySelector('#servers').textContent")))
        (await-in-page browser "[...document.querySelectorAll('canvas')]
                                  .filter(c => c.getContext('2d')
                                                .getImageData(0, 0, c.width, c.height)
                                                .data.some(Boolean))
                                  .length == 7") ; something is drawn in each chart
        (dolist (width '(360 1600))
          (emulate browser :width width :scheme "dark")
          (await-in-page browser "document.documentElement.dataset.theme == 'dark'")
          (is (equal "true" (evaluated browser
                                       "document.documentElement.scrollWidth <= innerWidth"))))
        (press browser "t" 84)
        (is (equal "light" (evaluated browser "document.documentElement.dataset.theme")))))))

(define-front-test (a-browser-tells-that-the-server-is-away-and-finds-it-again
                    :fronts (:hunchentoot) :modes (:plain) :needs :parking)
  (watching (request) ((:live-page "/live")) nil
    (with-browser (browser)
      (let ((port (port-of *server*)))
        (stop-front)
        (await-in-page browser
                       "document.querySelector('#state').textContent.includes('away since')")
        (reinitialize-instance *server* :port port)
        (hunchentoot:start *server*)
        (await-in-page browser "document.querySelector('#state').dataset.state == 'live'")))))
