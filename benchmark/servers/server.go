// Serves with net/http, over TLS if there is a certificate.
// usage: go-server PORT DELAY_MS SLOW_MS FILES [CERTIFICATE KEY]
package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

func answer(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, "Hey!")
}

// handleDelayed answers path after so many milliseconds.
func handleDelayed(path string, milliseconds string) {
	number, err := strconv.Atoi(milliseconds)
	if err != nil {
		log.Fatal(err)
	}
	delay := time.Duration(number) * time.Millisecond
	http.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
		if delay > 0 {
			time.Sleep(delay)
		}
		answer(w)
	})
}

// answerLater answers the number n of the query after ms milliseconds.
func answerLater(w http.ResponseWriter, r *http.Request) {
	milliseconds, err := strconv.Atoi(r.FormValue("ms"))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	time.Sleep(time.Duration(milliseconds) * time.Millisecond)
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, r.FormValue("n"))
}

func takeUpload(w http.ResponseWriter, r *http.Request) {
	if _, err := io.ReadAll(r.Body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer(w)
}

func main() {
	handleDelayed("/yo", os.Args[2])
	handleDelayed("/slow", os.Args[3])
	files := http.FileServer(http.Dir(os.Args[4]))
	http.Handle("/files/", http.StripPrefix("/files/", files))
	http.HandleFunc("/upload", takeUpload)
	http.HandleFunc("/later", answerLater)
	address := "127.0.0.1:" + os.Args[1]
	if len(os.Args) > 6 {
		log.Fatal(http.ListenAndServeTLS(address, os.Args[5], os.Args[6], nil))
	}
	log.Fatal(http.ListenAndServe(address, nil))
}
