(in-package #:hunchentoot-recycling-taskmaster.server)

;;;; The client of a request that comes through proxies.
;;;;
;;;;   the peer of the connection    the client of a request
;;;;   is no trusted proxy           the peer, whatever the request says
;;;;   is one                        as its fields tell (see forwarded.lisp of http/); else the peer
;;;;
;;;; With the PROXY protocol, the source in its header takes the place of the peer.

(defstruct (client (:include opaque) (:copier nil))
  "The client of a request, as trusted proxies tell it."
  ;; Address, a string, and port of CLIENT, a list. The port is 0 where no proxy tells it.
  (remote '() :type list :read-only t)
  (named-p nil :type boolean :read-only t) ; true if a proxy tells that address
  ;; The text of Host with which the peer has asked, where it tells that CLIENT has asked for
  ;; another; else NIL.
  (asked-host nil :type (or null text) :read-only t)
  ;; The scheme of the request of CLIENT: :HTTP or :HTTPS, or NIL where no proxy tells it.
  (scheme nil :type (member nil :http :https) :read-only t))

(defstruct (proxying (:include opaque) (:constructor make-proxying ()) (:copier nil))
  "What is known of the proxies of a connection.  Most connections have none, and no room for this."
  (trusted '() :type list)              ; the trusted proxies, if the peer is one of them
  (client nil :type (or null client))   ; of the current request
  ;; Of the PROXY protocol: a PROXY-HEADER until that has come whole, then :READ.
  (header nil :type (or null proxy-header (eql :read))))

;;; Lists of networks, and of :UNIX, which stands for the peers of Unix-domain sockets

(defun network-named (designator)
  "The element of a list of networks that DESIGNATOR names: that network where it is a string, an
address or a network; :UNIX; NIL if it names none."
  (cond ((eq :unix designator) :unix)
        ((stringp designator) (parse-network designator))))

(defun networks-named (designators)
  "The list of the networks that DESIGNATORS name, as NETWORK-NAMED tells."
  (mapcar #'network-named designators))

(defun address-in-p (networks address)
  "True when ADDRESS, an IP-ADDRESS, is in one of NETWORKS, a list."
  (loop for network in networks
        thereis (and (not (eq :unix network))
                     (in-network-p address network))))

(defun peer-in-p (networks name)
  "True when the peer with the address NAME, a string, is in one of NETWORKS, a list."
  (if (uiop:string-prefix-p "unix:" name)
      (and (member :unix networks) t)
      (let ((address (parse-ip-address name)))
        (and address (address-in-p networks address)))))
