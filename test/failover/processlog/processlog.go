// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package processlog records the starts of QEMU processes. Drover starts program recorder instead
// of QEMU. The recorder reports the start to a Log by a pipe, since QEMU may have no sockets, and
// halts itself. The Log inspects the process, whose user lacks all rights, and resumes it.
package processlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/test/framework/rules"
)

// haltTimeout is how long a process may take to halt once it has reported.
const haltTimeout = time.Minute

// Log receives the reports of recorders.
type Log struct {
	pipe *os.File

	mu     sync.Mutex
	starts []rules.Start
	err    error
}

// pipeOf returns the path of the pipe to which the program at a path reports.
func pipeOf(program string) string { return program + ".reports" }

// OpenReports makes a pipe for the JSON reports of a program that replaces QEMU. Only the caller may be able to change
// the program's folder. Every user may write to the pipe. Once it is closed, reports fail.
func OpenReports(program string) (*os.File, error) {
	path := pipeOf(program)
	const forAll = 0o622
	if err := errors.Join(unix.Mkfifo(path, forAll), os.Chmod(path, forAll)); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDWR, 0) // also for writing, so that reads do not end with the first writer
}

// SendReport sends a report of the program at a path.
func SendReport(program string, report any) error {
	pipe, err := os.OpenFile(pipeOf(program), os.O_WRONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	return errors.Join(json.NewEncoder(pipe).Encode(report), pipe.Close()) // a single write, so that reports do not mix
}

// NewLog returns a log that receives reports of the recorder at a path until it is closed.
func NewLog(recorder string) (*Log, error) {
	pipe, err := OpenReports(recorder)
	if err != nil {
		return nil, err
	}
	l := &Log{pipe: pipe}
	go l.serve()
	return l, nil
}

// Close ends the log. Recorders that report later fail and do not run QEMU.
func (l *Log) Close() error { return l.pipe.Close() }

// Starts returns all starts so far, and an error if any could not be recorded.
func (l *Log) Starts() ([]rules.Start, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.starts), l.err
}

func (l *Log) serve() {
	for reports := json.NewDecoder(l.pipe); ; {
		var start rules.Start
		if reports.Decode(&start) != nil {
			return
		}
		go func() {
			err := l.record(start)
			l.mu.Lock()
			defer l.mu.Unlock()
			l.err = errors.Join(l.err, err)
		}()
	}
}

// record records a start with the other processes of the server, and then resumes the process, which becomes QEMU. Of two
// processes that start at the same time, at least one is recorded with the other.
func (l *Log) record(start rules.Start) error {
	var server struct{ Run string }
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cwd/server.json", start.PID))
	if errors.Is(err, fs.ErrNotExist) { // the process was killed after its report
		return nil
	}
	if err == nil {
		err = json.Unmarshal(content, &server)
	}
	all, listErr := Processes(start.UID)
	if err := errors.Join(err, listErr); err != nil {
		return errors.Join(err, unix.Kill(start.PID, unix.SIGKILL))
	}
	start.Run, start.Others = server.Run, slices.DeleteFunc(all, func(pid int) bool { return pid == start.PID })
	l.mu.Lock()
	l.starts = append(l.starts, start)
	l.mu.Unlock()
	if err := waitHalted(start.PID); err != nil {
		return err
	}
	if err := unix.Kill(start.PID, unix.SIGCONT); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

// waitHalted waits until a process is halted, gone or a zombie: a killed process is a zombie as long as its parent is halted.
func waitHalted(pid int) error {
	const halted, zombie = 'T', 'Z'
	for begin := time.Now(); time.Since(begin) < haltTimeout; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, state, ok := bytes.Cut(stat, []byte(") ")); ok && (state[0] == halted || state[0] == zombie) {
			return nil
		}
	}
	return fmt.Errorf("process %d has reported its start, but does not halt", pid)
}

// Report reports that this process, the recorder at a path, is about to become the QEMU of a server, and waits until the
// start is recorded. It waits for SIGCONT, too: SIGSTOP may halt the other threads first, and this one only after it has
// become QEMU, while the Log finds no process.
func Report(recorder string, uid types.UID) error {
	resumed := make(chan os.Signal, 1)
	signal.Notify(resumed, unix.SIGCONT)
	if err := SendReport(recorder, rules.Start{At: time.Now().UTC(), PID: os.Getpid(), UID: uid}); err != nil {
		return err
	}
	if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
		return err
	}
	<-resumed
	return nil
}

// Processes returns the PIDs of the QEMU processes of a server.
func Processes(uid types.UID) ([]int, error) { return withOption("-name", launch.NameOf(string(uid))) }

// Supervisors returns the PIDs of the supervisors of a server.
func Supervisors(uid types.UID) ([]int, error) { return withOption("-machine", string(uid)) }

// withOption returns the PIDs of processes whose command line has an option with a value. The
// command line of a zombie is empty.
func withOption(option, value string) ([]int, error) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("\x00"+option+"\x00"+value+"\x00")) {
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
