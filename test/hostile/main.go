// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hostile runs instead of a machine's supervisor, and tries everything that a supervisor must not be able to do. It
// must stay a static program, so it imports no package that uses cgo.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/confine"
)

// configFile is the descriptor with a supervisor's configuration.
const configFile = 3

// Targets are the targets of the attacks.
type Targets struct {
	// Disk is the disk of another machine, Key a file of Drover, and Own a disk in the working directory.
	Disk, Key, Own string
	// Drover, QEMU and Other are PIDs, and Handle is a pidfd of QEMU.
	Drover, QEMU, Other, Handle int
	// Record is the descriptor of the record, and Port the port of a listener on this host.
	Record, Port int
	// IsBroken is set for a supervisor that its guest has taken over after its start, when it had called DenyStarts.
	IsBroken bool
}

func main() {
	var config struct{ Token string }
	var t Targets
	if err := errors.Join(json.NewDecoder(os.NewFile(configFile, "config")).Decode(&config), json.Unmarshal([]byte(config.Token), &t)); err != nil {
		panic(err)
	}
	memory, err := unix.MemfdCreate("program", 0)
	if err == nil {
		_, err = unix.Write(memory, []byte("no program"))
	}
	if err == nil && t.IsBroken {
		err = confine.DenyStarts(t.Handle, confine.Rights{MaySignal: true, MayConnect: true})
	}
	if err != nil {
		panic(err)
	}
	results := map[string]string{}
	for name, try := range t.attacks(memory) {
		results[name] = "succeeds"
		if err := try(); err != nil {
			results[name] = err.Error()
		}
	}
	_ = json.NewEncoder(os.Stderr).Encode(results)
}

func (t Targets) attacks(memory int) map[string]func() error {
	all := map[string]func() error{
		"shell":     func() error { return start("/bin/sh") },
		"itself":    func() error { return start("/proc/self/exe") },
		"memory":    func() error { return executeMemory(memory) },
		"namespace": func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
		"root":      func() error { return unix.Setuid(0) },
		"ring":      func() error { return call(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(new([128]byte)))) }, //nolint:gosec // a system call
		"connect":   t.connect,
		"listen":    listen,
	}
	for name, try := range map[string]func(int) error{
		"signal": func(pid int) error { return unix.Kill(pid, 0) },
		"handle": signalByHandle,
		"trace":  unix.PtraceSeize,
		"memory": func(pid int) error { return open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDONLY) },
		"limits": func(pid int) error { return unix.Prlimit(pid, unix.RLIMIT_CORE, nil, &unix.Rlimit{}) },
		"read":   readProcess,
	} {
		for who, pid := range map[string]int{"Drover": t.Drover, "QEMU": t.QEMU, "a machine": t.Other} {
			all[name+" of "+who] = func() error { return try(pid) }
		}
	}
	all["linger"] = func() error {
		return unix.SetsockoptLinger(t.Record, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	}
	all["listener of a filter"] = func() error {
		return call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	}
	all["file of QEMU"] = func() error { return call(unix.SYS_PIDFD_GETFD, uintptr(t.Handle), 0) }
	if t.IsBroken { // before, it can do so, and "own handle" fails
		all["close its handle"] = func() error { return unix.Close(t.Handle) }
		all["another in the place of its handle"] = func() error { return unix.Dup3(t.Record, t.Handle, unix.O_CLOEXEC) }
	}
	all["own handle"] = func() error { return unix.PidfdSendSignal(t.Handle, 0, nil, 0) }
	for name, path := range map[string]string{
		"another disk": t.Disk, "a key": t.Key, "own disk": t.Own, "passwd": "/etc/passwd", "own folder": ".", "the record": fmt.Sprintf("/proc/self/fd/%d", t.Record),
	} {
		all["open "+name] = func() error { return open(path, unix.O_RDONLY) }
		all["write "+name] = func() error { return open(path, unix.O_WRONLY) }
		all["mode of "+name] = func() error { return unix.Chmod(path, 0o666) }
	}
	all["new file"] = func() error { return open("new", unix.O_CREAT|unix.O_WRONLY) }
	all["new file in tmp"] = func() error { return open("/tmp/drover-hostile", unix.O_CREAT|unix.O_WRONLY) }
	for name, kind := range map[string]int{"stream": unix.SOCK_STREAM, "datagram": unix.SOCK_DGRAM, "sequence": unix.SOCK_SEQPACKET} {
		all["unix "+name] = func() error { return closed(unix.Socket(unix.AF_UNIX, kind, 0)) }
		all["pair of "+name] = func() error { return closed(pair(kind)) }
	}
	all["netlink"] = func() error { return closed(unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW, 0)) }
	return all
}

func pair(kind int) (int, error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, kind, 0)
	return ends[0], err
}

func closed(fd int, err error) error {
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func open(path string, flags int) error { return closed(unix.Open(path, flags|unix.O_CLOEXEC, 0o600)) }

func call(number, a, b uintptr) error {
	if _, _, errno := unix.Syscall(number, a, b, 0); errno != 0 {
		return errno
	}
	return nil
}

func start(path string) error {
	process, err := os.StartProcess(path, []string{path, "-c", "true"}, &os.ProcAttr{})
	if err != nil {
		return errors.Unwrap(err)
	}
	_, err = process.Wait()
	return err
}

// executeMemory tries to execute a file that is not a program, so that a successful call does not replace this process.
func executeMemory(fd int) error {
	empty := []byte{0}
	_, _, errno := unix.Syscall6(unix.SYS_EXECVEAT, uintptr(fd), uintptr(unsafe.Pointer(&empty[0])), 0, 0, unix.AT_EMPTY_PATH, 0) //nolint:gosec // a system call
	if errors.Is(errno, unix.ENOEXEC) {
		return nil
	}
	return errno
}

func signalByHandle(pid int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.PidfdSendSignal(fd, 0, nil, 0)
}

func readProcess(pid int) error {
	part := make([]byte, 1)
	at := uintptr(0x400000)
	_, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &part[0], Len: 1}}, []unix.RemoteIovec{{Base: at, Len: 1}}, 0)
	return err
}

func (t Targets) connect() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Connect(fd, &unix.SockaddrInet4{Port: t.Port, Addr: [4]byte{127, 0, 0, 1}})
}

func listen() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	return unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
}
