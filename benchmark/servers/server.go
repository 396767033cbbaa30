// Serves /yo with net/http.  usage: go-server PORT DELAY_MS
package main

import (
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	milliseconds, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	delay := time.Duration(milliseconds) * time.Millisecond
	http.HandleFunc("/yo", func(w http.ResponseWriter, r *http.Request) {
		if delay > 0 {
			time.Sleep(delay)
		}
		w.Header().Set("Content-Type", "text/plain")
		io.WriteString(w, "Hey!")
	})
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], nil))
}
