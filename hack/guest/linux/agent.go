// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The modes of the guest agent. In all but the first two an answer to a
// synchronization is right, unless the mode is about that.
const (
	agentOff      = "off"      // it has not opened its device
	agentHonest   = "honest"   // it does what the real one does, as far as tests need it
	agentSilent   = "silent"   // it reads, and answers nothing
	agentStalled  = "stalled"  // it answers nothing but synchronizations
	agentStale    = "stale"    // it is honest, and first sends what others have not read
	agentWrongID  = "wrong-id" // it synchronizes with other numbers
	agentGarbage  = "garbage"  // its answers are not valid JSON
	agentEndless  = "endless"  // an answer never ends
	agentDeep     = "deep"     // an answer is nested deep
	agentLying    = "lying"    // answers have the right form and impossible values
	agentDisabled = "disabled" // its commands are disabled
)

// guestAgent is a guest agent for tests.
type guestAgent struct {
	mode atomic.Pointer[string]

	mu        sync.Mutex
	port      *os.File
	processes map[int]*process
}

// setMode opens or closes the device, and answers as the mode says from then on.
func (a *guestAgent) setMode(mode string) error {
	a.mode.Store(&mode)
	a.mu.Lock()
	defer a.mu.Unlock()
	if mode == agentOff {
		if a.port != nil {
			_ = a.port.Close()
			a.port = nil
		}
		return nil
	}
	if a.port != nil {
		return nil
	}
	port, err := openPort("org.qemu.guest_agent.0")
	if err != nil {
		return err
	}
	a.port = port
	go a.serve(port)
	return nil
}

// openPort opens the serial port of a name.
func openPort(name string) (*os.File, error) {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, path := range names {
		if readFile(path) == name {
			return os.OpenFile(filepath.Join("/dev", filepath.Base(filepath.Dir(path))), os.O_RDWR, 0)
		}
	}
	return nil, fmt.Errorf("there is no port %s among %q", name, names)
}

// portReader reads a port. Without a client of the host a port is at its end, for a while.
type portReader struct{ port *os.File }

func (r portReader) Read(p []byte) (int, error) {
	for {
		n, err := r.port.Read(p)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		<-time.After(20 * time.Millisecond)
	}
}

// serve answers requests until the port is closed.
func (a *guestAgent) serve(port *os.File) {
	lines := bufio.NewReaderSize(portReader{port}, 4<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return
		}
		if i := bytes.LastIndexByte(line, 0xff); i >= 0 { // forget what was before
			line = line[i+1:]
		}
		var r agentRequest
		if json.Unmarshal(line, &r) != nil {
			continue
		}
		if _, err := port.Write(a.answer(r)); err != nil {
			logLine("agent", err)
		}
	}
}

// agentRequest is a command with all arguments that any command has.
type agentRequest struct {
	Execute   string
	Arguments struct {
		ID, PID int
		Path    string
		Arg     []string
		Input   []byte `json:"input-data"`
		Time    int64  // in nanoseconds
	}
}

// answer returns what the agent sends, by its mode.
func (a *guestAgent) answer(r agentRequest) []byte {
	mode := *a.mode.Load()
	if r.Execute == "guest-sync-delimited" {
		return syncAnswer(mode, r.Arguments.ID)
	}
	switch mode {
	case agentSilent, agentStalled:
		return nil
	case agentGarbage:
		return []byte("\x00\x01 not JSON \xc3\x28\n")
	case agentEndless:
		return append([]byte(`{"return":"`), bytes.Repeat([]byte("A"), 2<<20)...)
	case agentDeep:
		return append([]byte(`{"return":`), bytes.Repeat([]byte("["), 1<<20)...)
	case agentLying:
		return []byte(lies[r.Execute] + "\n")
	}
	result, err := a.execute(mode, r)
	if err != nil {
		result = map[string]any{"error": map[string]string{"class": "GenericError", "desc": err.Error()}}
	} else {
		result = map[string]any{"return": result}
	}
	line, _ := json.Marshal(result)
	return append(line, '\n')
}

// lies are answers of the right form.
var lies = map[string]string{
	"guest-info":                   `{"return":{"supported_commands":[{"name":"guest-exec","enabled":true},{"name":"guest-exec-status","enabled":true}]}}`,
	"guest-exec":                   `{"return":{"pid":-5}}`,
	"guest-exec-status":            `{"return":{"exited":true,"exitcode":1e300}}`,
	"guest-network-get-interfaces": `{"return":[{"name":"eth0\u001b[2J","hardware-address":"52:54:00:00:00:01"}]}`,
}

func syncAnswer(mode string, id int) []byte {
	right := fmt.Appendf(nil, "\xff{\"return\": %d}\n", id)
	switch mode {
	case agentSilent:
		return nil
	case agentWrongID:
		return fmt.Appendf(nil, "\xff{\"return\": %d}\n", id+1)
	case agentStale:
		return append([]byte(`{"exited": false, "out-data": "aGFs`+"\xff{\"return\": 12}\n\xff{\"return\": {\"a"), right...)
	}
	return right
}

// execute executes a command.
func (a *guestAgent) execute(mode string, r agentRequest) (any, error) {
	switch r.Execute {
	case "guest-info":
		return agentInfo(mode != agentDisabled), nil
	case "guest-exec":
		return a.start(r)
	case "guest-exec-status":
		return a.status(r.Arguments.PID)
	case "guest-network-get-interfaces":
		return listInterfaces()
	case "guest-set-time":
		return struct{}{}, setClock(time.Unix(0, r.Arguments.Time))
	}
	return nil, fmt.Errorf("the command %s has not been found", r.Execute)
}

func agentInfo(isEnabled bool) any {
	var commands []map[string]any
	for _, name := range []string{"guest-exec", "guest-exec-status"} {
		commands = append(commands, map[string]any{"name": name, "enabled": isEnabled, "success-response": true})
	}
	return map[string]any{"version": "7.2.0", "supported_commands": commands}
}

// process is a command that was started.
type process struct {
	cmd      *exec.Cmd
	out, err bytes.Buffer
	over     chan struct{}
}

func (a *guestAgent) start(r agentRequest) (any, error) {
	p := &process{cmd: exec.Command(r.Arguments.Path, r.Arguments.Arg...), over: make(chan struct{})} //nolint:gosec,noctx // as asked for
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = bytes.NewReader(r.Arguments.Input), &p.out, &p.err
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("Guest agent command failed, error was '%w'", err) //nolint:staticcheck // as the real one says it
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.over)
	}()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.processes[p.cmd.Process.Pid] = p
	return map[string]int{"pid": p.cmd.Process.Pid}, nil
}

// status returns how a command ended, once.
func (a *guestAgent) status(pid int) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.processes[pid]
	if p == nil {
		return nil, fmt.Errorf("PID %d does not exist", pid)
	}
	select {
	case <-p.over:
	default:
		return map[string]bool{"exited": false}, nil
	}
	delete(a.processes, pid)
	status := map[string]any{"exited": true}
	if end := p.cmd.ProcessState.Sys().(syscall.WaitStatus); end.Signaled() {
		status["signal"] = end.Signal()
	} else {
		status["exitcode"] = end.ExitStatus()
	}
	for name, out := range map[string][]byte{"out-data": p.out.Bytes(), "err-data": p.err.Bytes()} {
		if len(out) > 0 {
			status[name] = out
		}
	}
	return status, nil
}

// runningProcesses returns how many commands run.
func (a *guestAgent) runningProcesses() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.processes {
		select {
		case <-p.over:
		default:
			n++
		}
	}
	return n
}

func setClock(now time.Time) error {
	of := syscall.NsecToTimeval(now.UnixNano())
	return syscall.Settimeofday(&of)
}

func listInterfaces() (any, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	found := []map[string]any{}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			return nil, err
		}
		listed := []map[string]any{}
		for _, a := range addresses {
			ip := a.(*net.IPNet)
			ones, bits := ip.Mask.Size()
			kind := map[int]string{32: "ipv4", 128: "ipv6"}[bits]
			listed = append(listed, map[string]any{"ip-address-type": kind, "ip-address": ip.IP.String(), "prefix": ones})
		}
		mac := i.HardwareAddr.String()
		if mac == "" {
			mac = strings.TrimSuffix(strings.Repeat("00:", 6), ":")
		}
		found = append(found, map[string]any{"name": i.Name, "hardware-address": mac, "ip-addresses": listed})
	}
	return found, nil
}
