// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package processlog records which QEMUs are started. The recorder, beside this folder,
// reports each start to a Log, which looks at the process from outside: QEMU's user may read
// nothing.
package processlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/test/framework/rules"
)

// answerWithin bounds a report and its answer.
const answerWithin = time.Minute

// Log takes the reports of recorders.
type Log struct {
	listener net.Listener

	mu     sync.Mutex
	starts []rules.Start
	err    error
}

// NewLog returns a log that takes reports until it is closed.
func NewLog(ctx context.Context) (*Log, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &Log{listener: listener}
	go l.serve()
	return l, nil
}

// Port returns the TCP port to which recorders report.
func (l *Log) Port() int {
	_, port, _ := net.SplitHostPort(l.listener.Addr().String())
	number, _ := strconv.Atoi(port)
	return number
}

// Close ends the log. Recorders that report later fail, and start no QEMU.
func (l *Log) Close() error { return l.listener.Close() }

// Starts returns all starts so far, and an error if any could not be recorded.
func (l *Log) Starts() ([]rules.Start, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.starts), l.err
}

func (l *Log) serve() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer func() { _ = conn.Close() }()
			start, err := receive(conn)
			l.mu.Lock()
			defer l.mu.Unlock()
			if err != nil {
				l.err = errors.Join(l.err, err)
				return
			}
			l.starts = append(l.starts, start)
			_, err = conn.Write([]byte(answer))
			l.err = errors.Join(l.err, err)
		}()
	}
}

const answer = "recorded"

// receive takes a report. It looks for other processes before the reporting one becomes
// QEMU. Of two that start at the same time, at least one is seen beside the other.
func receive(conn net.Conn) (rules.Start, error) {
	if err := conn.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return rules.Start{}, err
	}
	var start rules.Start
	if err := json.NewDecoder(conn).Decode(&start); err != nil {
		return rules.Start{}, fmt.Errorf("reading a report: %w", err)
	}
	var server struct{ Run string }
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/server.json", start.PID))
	if err != nil {
		return rules.Start{}, err
	}
	if err := json.Unmarshal(content, &server); err != nil {
		return rules.Start{}, err
	}
	all, err := Processes(start.UID)
	start.Run, start.Others = server.Run, slices.DeleteFunc(all, func(pid int) bool { return pid == start.PID })
	return start, err
}

// Report reports that this process is about to become the QEMU of a server, and returns once
// that is recorded.
func Report(ctx context.Context, port string, uid types.UID) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if err := json.NewEncoder(conn).Encode(rules.Start{At: time.Now().UTC(), PID: os.Getpid(), UID: uid}); err != nil {
		return err
	}
	got, err := io.ReadAll(io.LimitReader(conn, int64(len(answer))))
	if err == nil && string(got) != answer {
		err = fmt.Errorf("the start was not recorded: %q", got)
	}
	return err
}

// Processes returns the QEMUs that run for a server.
func Processes(uid types.UID) ([]int, error) { return withOption("-uuid", uid) }

// Supervisors returns the supervisors that follow the QEMU of a server.
func Supervisors(uid types.UID) ([]int, error) { return withOption("-machine", uid) }

// withOption returns the processes whose command line has an option with a server's UID. A process
// that has ended and was not reaped yet has no command line.
func withOption(option string, uid types.UID) ([]int, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("\x00"+option+"\x00"+string(uid)+"\x00")) {
			continue // it may have ended meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
