// The application by net/http, with pgx's pool and gorilla's WebSockets.
// usage: server PORT DATA SOCKETS [CERTIFICATE KEY]
// DATA is the folder with file.bin and items.json, SOCKETS that of PostgreSQL's socket, or "".
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"log"
	"net/http"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"github.com/jackc/pgx/v4/pgxpool"
)

type item struct {
	ID       int      `json:"id"`
	Name     string   `json:"name"`
	Category string   `json:"category"`
	Price    int      `json:"price"`
	Quantity int      `json:"quantity"`
	Active   bool     `json:"active"`
	Tags     []string `json:"tags"`
	Rating   struct {
		Score int `json:"score"`
		Count int `json:"count"`
	} `json:"rating"`
	Total int `json:"total"`
}

type fortune struct {
	ID      int
	Message string
}

var page = template.Must(template.New("fortunes").Parse(`<!DOCTYPE html><html><head>` +
	`<title>Fortunes</title></head><body><table><tr><th>id</th><th>message</th></tr>` +
	`{{range .}}<tr><td>{{.ID}}</td><td>{{.Message}}</td></tr>{{end}}</table></body></html>`))

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// integer is the integer that text is, or 0.
func integer(text string) int {
	number, _ := strconv.Atoi(text)
	return number
}

func sendText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain")
	io.WriteString(w, text)
}

func sendJSON(w http.ResponseWriter, value interface{}) {
	w.Header().Set("Content-Type", "application/json")
	text, _ := json.Marshal(value)
	w.Write(text)
}

func hello(w http.ResponseWriter, r *http.Request) { sendText(w, "Hey!") }

func wait(w http.ResponseWriter, r *http.Request) {
	time.Sleep(time.Millisecond)
	sendText(w, "Hey!")
}

func mix(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	sum := integer(query.Get("a")) + integer(query.Get("b"))
	if r.Method == "POST" {
		content, _ := io.ReadAll(r.Body)
		sum += integer(string(content))
	}
	sendText(w, strconv.Itoa(sum))
}

func upload(w http.ResponseWriter, r *http.Request) {
	count, _ := io.Copy(io.Discard, r.Body)
	sendText(w, strconv.FormatInt(count, 10))
}

func later(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	time.Sleep(time.Duration(integer(query.Get("ms"))) * time.Millisecond)
	sendText(w, query.Get("n"))
}

func handleItems(data string) {
	var all []item
	text, err := os.ReadFile(data + "/items.json")
	check(err)
	check(json.Unmarshal(text, &all))
	http.HandleFunc("/json/", func(w http.ResponseWriter, r *http.Request) {
		count := integer(strings.TrimPrefix(r.URL.Path, "/json/"))
		factor := integer(r.URL.Query().Get("m"))
		if count < 1 || count > len(all) {
			count = len(all)
		}
		some := make([]item, count)
		for i, each := range all[:count] {
			each.Total = each.Price * each.Quantity * factor
			some[i] = each
		}
		sendJSON(w, map[string]interface{}{"items": some, "count": count})
	})
}

func handleDatabase(sockets string) {
	config, err := pgxpool.ParseConfig("host=" + sockets + " user=bench dbname=bench")
	check(err)
	config.MaxConns = 100
	pool, err := pgxpool.ConnectConfig(context.Background(), config)
	check(err)
	http.HandleFunc("/row", func(w http.ResponseWriter, r *http.Request) {
		var row struct {
			ID    int    `json:"id"`
			Name  string `json:"name"`
			Price int    `json:"price"`
		}
		err := pool.QueryRow(r.Context(), "SELECT id, name, price FROM items WHERE id = $1",
			integer(r.URL.Query().Get("id"))).Scan(&row.ID, &row.Name, &row.Price)
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		sendJSON(w, row)
	})
	http.HandleFunc("/fortunes", func(w http.ResponseWriter, r *http.Request) {
		rows, err := pool.Query(r.Context(), "SELECT id, message FROM fortunes")
		if err != nil {
			http.Error(w, err.Error(), 500)
			return
		}
		defer rows.Close()
		all := []fortune{{0, "Additional fortune added at request time."}}
		for rows.Next() {
			var each fortune
			rows.Scan(&each.ID, &each.Message)
			all = append(all, each)
		}
		sort.Slice(all, func(i, j int) bool { return all[i].Message < all[j].Message })
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		page.Execute(w, all)
	})
}

var (
	lock        sync.Mutex
	subscribers = map[chan string]bool{}
)

// publish publishes an event each second.
func publish() {
	for id := 1; ; id++ {
		time.Sleep(time.Second)
		event := fmt.Sprintf("id: %d\ndata: %d\n\n", id, time.Now().UnixMicro())
		lock.Lock()
		for subscriber := range subscribers {
			select {
			case subscriber <- event:
			default:
			}
		}
		lock.Unlock()
	}
}

func events(w http.ResponseWriter, r *http.Request) {
	subscriber := make(chan string, 16)
	lock.Lock()
	subscribers[subscriber] = true
	lock.Unlock()
	defer func() {
		lock.Lock()
		delete(subscribers, subscriber)
		lock.Unlock()
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.(http.Flusher).Flush()
	for {
		select {
		case event := <-subscriber:
			io.WriteString(w, event)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

var upgrader = websocket.Upgrader{}

func echo(w http.ResponseWriter, r *http.Request) {
	socket, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer socket.Close()
	for {
		kind, message, err := socket.ReadMessage()
		if err != nil || socket.WriteMessage(kind, message) != nil {
			return
		}
	}
}

func main() {
	data, sockets := os.Args[2], os.Args[3]
	http.HandleFunc("/hello", hello)
	http.HandleFunc("/wait", wait)
	http.HandleFunc("/mix", mix)
	http.HandleFunc("/upload", upload)
	http.HandleFunc("/later", later)
	http.HandleFunc("/events", events)
	http.HandleFunc("/echo", echo)
	http.HandleFunc("/file", func(w http.ResponseWriter, r *http.Request) {
		http.ServeFile(w, r, data+"/file.bin")
	})
	handleItems(data)
	if sockets != "" {
		handleDatabase(sockets)
	}
	go publish()
	address := "127.0.0.1:" + os.Args[1]
	if len(os.Args) > 5 {
		log.Fatal(http.ListenAndServeTLS(address, os.Args[4], os.Args[5], nil))
	}
	log.Fatal(http.ListenAndServe(address, nil))
}
