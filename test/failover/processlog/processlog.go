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

// ProcessStart is the start of a QEMU.
type ProcessStart struct {
	At  time.Time `json:"at"`
	PID int       `json:"pid"`
	UID types.UID `json:"uid"`
	// Run is the run for which it was started, from the server's record.
	Run string `json:"run"`
	// Others are the processes of the same server that ran at that moment.
	Others []int `json:"others,omitempty"`
}

// Log takes the reports of recorders.
type Log struct {
	listener net.Listener

	mu     sync.Mutex
	starts []ProcessStart
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
func (l *Log) Starts() ([]ProcessStart, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.starts), l.err
}

// The rules for the starts of a server.
const (
	// RuleOneProcess says that while a QEMU runs for a UID, no other is started for it.
	RuleOneProcess = rules.O3
	// RuleOneProcessPerRun says that one QEMU is started for each run.
	RuleOneProcessPerRun = rules.O3
)

// CheckStarts checks the starts of one server.
func CheckStarts(all []ProcessStart) []rules.Violation {
	var broken []rules.Violation
	runs := map[string]int{}
	for _, s := range all {
		if len(s.Others) > 0 {
			broken = append(broken, rules.Violation{Rule: rules.O3, UID: s.UID, Text: fmt.Sprintf("process %d was started at %s while %v ran", s.PID, s.At.Format(time.StampMilli), s.Others)})
		}
		if before, known := runs[s.Run]; known {
			broken = append(broken, rules.Violation{Rule: rules.O3, UID: s.UID, Text: fmt.Sprintf("process %d was started for run %q, as %d was", s.PID, s.Run, before)})
		}
		runs[s.Run] = s.PID
	}
	return broken
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
func receive(conn net.Conn) (ProcessStart, error) {
	if err := conn.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return ProcessStart{}, err
	}
	var start ProcessStart
	if err := json.NewDecoder(conn).Decode(&start); err != nil {
		return ProcessStart{}, fmt.Errorf("reading a report: %w", err)
	}
	var server struct{ Run string }
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/server.json", start.PID))
	if err != nil {
		return ProcessStart{}, err
	}
	if err := json.Unmarshal(content, &server); err != nil {
		return ProcessStart{}, err
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
	if err := json.NewEncoder(conn).Encode(ProcessStart{At: time.Now().UTC(), PID: os.Getpid(), UID: uid}); err != nil {
		return err
	}
	got, err := io.ReadAll(io.LimitReader(conn, int64(len(answer))))
	if err == nil && string(got) != answer {
		err = fmt.Errorf("the start was not recorded: %q", got)
	}
	return err
}

// Processes returns the processes that run for a server. A process that has ended
// and was not reaped yet has no command line.
func Processes(uid types.UID) ([]int, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("\x00-uuid\x00"+string(uid)+"\x00")) {
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
