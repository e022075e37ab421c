// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo-guest is a small guest for demonstrations and tests: one static
// program that serves HTTP and does on request what guests do by themselves,
// such as burning CPU or crashing. hack/demo.sh makes an image of it.
//
//	/                     shows which guest answers
//	/load?seconds=30      burns CPU, for ever without seconds
//	/memory?bytes=1000000 allocates that much memory
//	/exit?code=3          ends with that code
//	/ignore-term          ignores SIGTERM from now on
//
// Environment: PORT (80) to listen on, IGNORE_TERM=1 to ignore SIGTERM from the
// start, EXIT_CODE=3 to end with that code immediately.
package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

type guest struct {
	ignoreTerm atomic.Bool

	ballastMutex sync.Mutex
	ballast      []byte
}

func main() {
	log.SetOutput(os.Stdout)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGUSR1)
	exitImmediately(os.Getenv("EXIT_CODE"))
	g := &guest{}
	g.ignoreTerm.Store(os.Getenv("IGNORE_TERM") != "")
	go g.handleSignals(signals)
	port := os.Getenv("PORT")
	if port == "" {
		port = "80"
	}
	server := &http.Server{Addr: ":" + port, Handler: g.newHandler(), ReadHeaderTimeout: 10 * time.Second}
	log.Print("the demo guest is up")
	log.Fatal(server.ListenAndServe())
}

func exitImmediately(code string) {
	if n, err := strconv.Atoi(code); err == nil {
		log.Printf("ending with code %d, as EXIT_CODE requests", n)
		os.Exit(n)
	}
}

// handleSignals makes signals end the process: the kernel protects the first process of a
// container from signals that it does not handle.
func (g *guest) handleSignals(signals <-chan os.Signal) {
	for s := range signals {
		if g.ignoreTerm.Load() {
			log.Printf("ignoring %v", s)
			continue
		}
		log.Printf("ending on %v", s)
		os.Exit(0)
	}
}

func (g *guest) newHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", handleRoot)
	mux.HandleFunc("/load", handleLoad)
	mux.HandleFunc("/memory", g.handleMemory)
	mux.HandleFunc("/exit", handleExit)
	mux.HandleFunc("/ignore-term", func(w http.ResponseWriter, _ *http.Request) {
		g.ignoreTerm.Store(true)
		writeLine(w, "ignoring SIGTERM from now on")
	})
	return mux
}

// writeLine writes a line of the response. An error means that the client has gone, and
// is ignored.
func writeLine(w http.ResponseWriter, format string, args ...any) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = fmt.Fprintf(w, format+"\n", args...) //nolint:gosec // plain text of host name and numbers
}

func handleRoot(w http.ResponseWriter, _ *http.Request) {
	host, _ := os.Hostname()
	writeLine(w, "hello from %s", host)
}

func handleLoad(w http.ResponseWriter, r *http.Request) {
	until := time.Now().Add(time.Duration(intParameter(r, "seconds", 1<<31)) * time.Second)
	for range runtime.NumCPU() {
		go burnCPU(until)
	}
	writeLine(w, "burning %d CPUs until %s", runtime.NumCPU(), until.UTC().Format(time.RFC3339))
}

func burnCPU(until time.Time) {
	for n := 0; ; n++ {
		if n%(1<<20) == 0 && time.Now().After(until) {
			return
		}
	}
}

func (g *guest) handleMemory(w http.ResponseWriter, r *http.Request) {
	g.ballastMutex.Lock()
	defer g.ballastMutex.Unlock()
	g.ballast = nil // a repeated request replaces the memory of the first
	debug.FreeOSMemory()
	g.ballast = make([]byte, intParameter(r, "bytes", 0))
	for i := 0; i < len(g.ballast); i += os.Getpagesize() {
		g.ballast[i] = 1
	}
	writeLine(w, "holding %d bytes", len(g.ballast))
}

func handleExit(w http.ResponseWriter, r *http.Request) {
	code := intParameter(r, "code", 0)
	writeLine(w, "ending with code %d", code)
	time.AfterFunc(100*time.Millisecond, func() { os.Exit(code) })
}

func intParameter(r *http.Request, key string, otherwise int) int {
	if n, err := strconv.Atoi(r.URL.Query().Get(key)); err == nil && n >= 0 {
		return n
	}
	return otherwise
}
