(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The client of a request that comes through proxies.
;;;;
;;;;   the peer of the connection    the client of a request
;;;;   is no trusted proxy           the peer, whatever the request says
;;;;   is one                        as its fields tell (see forwarded.lisp of http/); else the peer
;;;;
;;;; With the PROXY protocol, the source in its header takes the place of the peer.

(define-record (client (:include opaque) (:copier nil))
  "The client of a request, as trusted proxies tell it."
  (remote '() :type list :read-only t
   :documentation "Address, a string, and port of CLIENT, a list.  The port is 0 where no proxy tells
it.")
  (scheme nil :type (member nil :http :https) :read-only t
   :documentation "The scheme of the request of CLIENT: :HTTP or :HTTPS, or NIL where no proxy tells
it."))

;;; Trusted proxies

(defun trusted-proxy-of (designator)
  "The network, or :UNIX, that DESIGNATOR names in an argument; NIL if it names none."
  (cond ((eq :unix designator) :unix)
        ((stringp designator) (parse-network designator))))

(defun trusted-networks (designators)
  "The trusted proxies that DESIGNATORS name, a list: addresses and networks, strings, and :UNIX for
the peers of Unix-domain sockets.  The result is for TRUSTED-PROXIES."
  (mapcar #'trusted-proxy-of designators))

(defun trusted-address-p (trusted address)
  "True when ADDRESS, an IP-ADDRESS, is in TRUSTED, a list of trusted proxies."
  (loop for proxy in trusted
        thereis (and (not (eq :unix proxy))
                     (in-network-p address proxy))))

(defun trusted-peer-p (trusted name)
  "True when the peer with the address NAME, a string, is in TRUSTED, a list of trusted proxies."
  (if (eql 0 (search "unix:" name))
      (member :unix trusted)
      (let ((address (parse-ip-address name)))
        (and address (trusted-address-p trusted address)))))
