// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Program program is the only program of the image that the tests of package boot start as a machine.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// report describes the machine as a program sees it.
type report struct {
	UID, GID int
	Groups   []int
	Env      []string
	Dir      string
	Hostname string
	Hosts    string
	Resolv   string
	Mounts   string
	Files    uint64 // how many may be open
	Limits   string
	Caps     string
	Modprobe string
	Settings string // of the kernel, for usual servers
	Disk     uint64 // bytes of the root
	Stdin    string
	Terminal bool
	Inits    string // the command line of the first process
}

func main() {
	switch arg(1) {
	case "report":
		_ = json.NewEncoder(os.Stdout).Encode(newReport())
	case "serve":
		serve()
	case "exit":
		code, _ := strconv.Atoi(arg(2))
		os.Exit(code)
	case "die":
		number, _ := strconv.Atoi(arg(2))
		_ = syscall.Kill(os.Getpid(), syscall.Signal(number))
		select {}
	case "cat":
		_, _ = io.Copy(os.Stdout, os.Stdin)
	case "write":
		check(os.WriteFile(arg(2), []byte(arg(3)), 0o644))
	case "read":
		text, err := os.ReadFile(arg(2))
		check(err)
		fmt.Print(string(text))
	case "open":
		_, err := os.OpenFile(arg(2), os.O_RDWR, 0)
		check(err)
	case "mode":
		info, err := os.Lstat(arg(2))
		check(err)
		fmt.Println(info.Mode())
	case "remove":
		check(os.Remove(arg(2)))
	case "sctp": // whose module needs others
		_, err := unix.Socket(unix.AF_INET, unix.SOCK_SEQPACKET, unix.IPPROTO_SCTP)
		check(err)
	case "stdout": // by its name, as many images log
		check(os.WriteFile("/dev/stdout", []byte("by its name\n"), 0))
	case "keep": // leaves a child behind that keeps the output open
		check(exec.Command("/proc/self/exe", "sleep").Start())
		child := exec.Command("/proc/self/exe", "sleep")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		check(child.Start())
		fmt.Println("left a child")
	case "stubborn": // does not end at the stop signal
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("stubborn")
		time.Sleep(time.Hour)
	case "sleep":
		time.Sleep(time.Hour)
	case "orphans": // each child leaves a process that ends when nothing waits for it but the first process
		for range 50 {
			check(exec.Command("/proc/self/exe", "orphan").Run())
		}
		fmt.Println("left orphans")
	case "orphan":
		check(exec.Command("/proc/self/exe", "exit", "0").Start())
	case "flood":
		flood()
	case "reboot":
		number, _ := strconv.ParseUint(arg(2), 0, 32)
		check(unix.Reboot(int(number)))
	case "kill all":
		check(syscall.Kill(-1, syscall.SIGKILL))
	case "eat": // all memory
		for all := [][]byte{}; ; {
			all = append(all, bytes.Repeat([]byte{1}, 1<<20))
		}
	case "eat in a child": // and report its end as a shell does
		err := exec.Command("/proc/self/exe", "eat").Run()
		ended, _ := errors.AsType[*exec.ExitError](err)
		os.Exit(128 + int(ended.Sys().(syscall.WaitStatus).Signal()))
	case "zombies":
		fmt.Println(zombies())
	}
}

func arg(i int) string {
	if i < len(os.Args) {
		return os.Args[i]
	}
	return ""
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve counts its starts in a file, and ends with code 7 at SIGQUIT.
func serve() {
	stop := make(chan os.Signal, 8)
	signal.Notify(stop, syscall.SIGQUIT, syscall.SIGTERM)
	starts := readFile("starts") + "+"
	check(os.WriteFile("starts", []byte(starts), 0o644))
	fmt.Println("serving", starts)
	fmt.Fprintln(os.Stderr, "on stderr")
	fmt.Println("got", <-stop)
	os.Exit(7)
}

func readFile(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func newReport() report {
	r := report{UID: os.Getuid(), GID: os.Getgid(), Env: os.Environ()}
	r.Groups, _ = os.Getgroups()
	r.Dir, _ = os.Getwd()
	r.Hostname, _ = os.Hostname()
	r.Hosts, r.Resolv, r.Mounts = readFile("/etc/hosts"), readFile("/etc/resolv.conf"), readFile("/proc/mounts")
	r.Limits, r.Modprobe = readFile("/proc/self/limits"), readFile("/proc/sys/kernel/modprobe")
	for _, name := range []string{"vm/overcommit_memory", "vm/max_map_count", "fs/inotify/max_user_instances", "fs/inotify/max_user_watches"} {
		r.Settings += readFile("/proc/sys/" + name)
	}
	for line := range strings.Lines(readFile("/proc/self/status")) {
		if caps, ok := strings.CutPrefix(line, "CapEff:"); ok {
			r.Caps = strings.TrimSpace(caps)
		}
	}
	var fs syscall.Statfs_t
	_ = syscall.Statfs("/", &fs)
	r.Disk = fs.Blocks * uint64(fs.Bsize)
	r.Inits = strings.ReplaceAll(readFile("/proc/1/cmdline"), "\x00", " ")
	r.Stdin, _ = os.Readlink("/proc/self/fd/0")
	_, err := os.Open("/dev/tty")
	r.Terminal = err == nil
	return r
}

// zombies counts processes that nothing has waited for.
func zombies() (n int) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err == nil && strings.Contains(readFile("/proc/"+e.Name()+"/stat"), ") Z ") {
			n++
		}
	}
	return n
}

// flood writes as much as it can to the disk for the result.
func flood() {
	serials, err := filepath.Glob("/sys/block/*/serial")
	check(err)
	for _, file := range serials {
		if strings.TrimSpace(readFile(file)) != arg(2) {
			continue
		}
		disk := "/dev/" + path.Base(path.Dir(file))
		f, err := os.OpenFile(disk, os.O_WRONLY, 0)
		check(err)
		total := 0
		for err == nil && total < 64<<20 {
			var n int
			n, err = f.Write(make([]byte, 64<<10))
			total += n
		}
		fmt.Printf("wrote %d bytes to %s\n", total, disk)
		return
	}
}
