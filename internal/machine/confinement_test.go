// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/confine"
)

// TestMain runs the tests, or the hostile program if it was started in QEMU's place.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && slices.Contains([]string{"-nodefaults", "-L", "--version"}, os.Args[1]) {
		attackHost()
		return
	}
	os.Exit(m.Run())
}

// targets are what the hostile program attacks.
type targets struct {
	// Disk is another machine's, and Key a file of Drover's.
	Disk, Key, Socket, Abstract, Kernel string
	Parent                              int
	OwnPort, OtherPort                  int32
}

// attackHost tries what a QEMU must not do, and prints what came of each try.
func attackHost() {
	i := slices.Index(os.Args, "-append")
	if i < 0 { // only queried
		fmt.Println("version 7.2")
		return
	}
	var t targets
	if err := json.Unmarshal([]byte(os.Args[i+1]), &t); err != nil {
		panic(err)
	}
	t.Kernel = os.Args[slices.Index(os.Args, "-kernel")+1]
	results := map[string]string{}
	for name, try := range t.attacks() {
		results[name] = "succeeds"
		if err := try(); err != nil {
			results[name] = err.Error()
		}
	}
	_ = json.NewEncoder(os.Stdout).Encode(results)
}

func (t targets) attacks() map[string]func() error {
	read := func(path string) func() error {
		return func() error { return closeNew(os.Open(path)) }
	}
	write := func(path string) func() error {
		return func() error { return closeNew(os.Create(path)) }
	}
	dial := func(network, address string) func() error {
		return func() error {
			return closeNew((&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), network, address))
		}
	}
	return map[string]func() error{
		"read another disk": read(t.Disk),
		"read a key":        read(t.Key),
		"read shadow":       read("/etc/shadow"),
		"read own disk":     read(RootNode),
		"list a folder":     func() error { _, err := os.ReadDir("/etc"); return err },
		"write a disk":      func() error { return closeNew(os.OpenFile(t.Disk, os.O_WRONLY, 0)) },
		"truncate a disk":   func() error { return os.Truncate(t.Disk, 1) },
		"remove a disk":     func() error { return os.Remove(t.Disk) },
		"link a disk":       func() error { return os.Link(t.Disk, t.Disk+".link") },
		"new file":          write("new"),
		"new file outside":  write(t.Disk + ".new"),
		"shell":             func() error { return exec.CommandContext(context.Background(), "/bin/sh", "-c", "true").Run() },
		"read own kernel":   read(t.Kernel),
		"unix socket":       dial("unix", t.Socket),
		"abstract socket":   dial("unix", "@"+t.Abstract),
		"signal":            func() error { return syscall.Kill(t.Parent, 0) },
		"trace":             func() error { return unix.PtraceSeize(t.Parent) }, // does not stop it
		"memory":            read(fmt.Sprintf("/proc/%d/mem", t.Parent)),
		"own port": func() error {
			return closeNew(new(net.ListenConfig).Listen(context.Background(), "tcp4", fmt.Sprintf("127.0.0.1:%d", t.OwnPort)))
		},
		"other port": func() error {
			return closeNew(new(net.ListenConfig).Listen(context.Background(), "tcp4", fmt.Sprintf("127.0.0.1:%d", t.OtherPort)))
		},
		"connect": dial("tcp4", fmt.Sprintf("127.0.0.1:%d", t.OtherPort)),
	}
}

func closeNew[C interface{ Close() error }](c C, err error) error {
	if err != nil {
		return err
	}
	return c.Close()
}

// TestHostile runs a hostile program in QEMU's place, as confined as QEMU is, and checks
// what it can do with each version of Landlock.
func TestHostile(t *testing.T) {
	t.Parallel()
	newest := confine.ABI()
	for _, abi := range []int{0, 1, 2, 3, 4, 5, 6, 9} {
		t.Run(fmt.Sprintf("ABI %d", abi), func(t *testing.T) {
			t.Parallel()
			if abi > newest {
				t.Skipf("this kernel has ABI %d", newest)
			}
			got := attack(t, abi)
			for name, since := range map[string]int{
				"read another disk": 1, "read a key": 1, "read shadow": 1, "read own disk": 1, "list a folder": 1,
				"write a disk": 1, "remove a disk": 1, "link a disk": 1, "new file": 1, "new file outside": 1,
				"shell": 1, "trace": 1, "memory": 1,
				"truncate a disk": 3, "other port": 4, "signal": 6, "abstract socket": 6, "unix socket": 9,
			} {
				if abi >= since && !isDenied(got[name]) {
					t.Errorf("%s: %q, want it denied", name, got[name])
				}
				if abi < since && name == "unix socket" && got[name] != "succeeds" {
					t.Errorf("%s: %q: the threat model says that it succeeds", name, got[name])
				}
			}
			for _, name := range []string{"own port", "connect", "read own kernel"} {
				if got[name] != "succeeds" {
					t.Errorf("%s: %q, want it to succeed", name, got[name])
				}
			}
		})
	}
}

func isDenied(result string) bool {
	return strings.HasSuffix(result, syscall.EACCES.Error()) || strings.HasSuffix(result, syscall.EPERM.Error()) || strings.HasSuffix(result, syscall.EXDEV.Error())
}

// attack runs the hostile program with a version of Landlock, and returns what came of it.
func attack(t *testing.T, abi int) map[string]string {
	t.Helper()
	dir, config := makeTargets(t)
	m := Machine{Path: dir, UUID: "0c6f2f4a-0000-4000-8000-000000000001", Staging: folder(t.TempDir())}
	self, err := os.Executable()
	must(t, err)
	program := &Program{Name: self}
	policy, err := program.policy(t.Context(), config)
	must(t, err)
	if newest := confine.ABI(); policy.ABI != newest {
		t.Fatalf("it is confined with ABI %d, want %d", policy.ABI, newest)
	}
	policy.ABI = abi
	lock, err := m.ClaimRun()
	must(t, err)
	defer func() { _ = lock.Close() }()
	ended, err := m.startProcess(m.command(t.Context(), self, config.arguments(), append([]*os.File{lock, lock, lock, lock, lock}, config.Files.inherited()...)), policy)
	must(t, err)
	config.Files.Close()
	if how := <-ended; how != "exit status 0" {
		t.Errorf("it ended with %s", how)
	}
	out, err := os.ReadFile(m.File(LogFile))
	must(t, err)
	var results map[string]string
	if err := json.Unmarshal(out, &results); err != nil {
		t.Fatalf("it printed %q: %v", out, err)
	}
	return results
}

// makeTargets makes a machine's directory, and what its hostile program attacks.
func makeTargets(t *testing.T) (dir string, config Config) {
	t.Helper()
	dir = t.TempDir()
	x := targets{Parent: os.Getpid(), Abstract: "drover-hostile-" + filepath.Base(t.TempDir()) + t.Name()}
	other := t.TempDir()
	x.Disk, x.Key, x.Socket = filepath.Join(other, "root.qcow2"), filepath.Join(other, "key"), filepath.Join(other, "s")
	for _, path := range []string{x.Disk, x.Key, filepath.Join(dir, RootNode), filepath.Join(dir, "kernel")} {
		must(t, os.WriteFile(path, []byte("secret"), 0o600))
	}
	for _, address := range []string{x.Socket, "@" + x.Abstract} {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "unix", address)
		must(t, err)
		t.Cleanup(func() { _ = listener.Close() })
	}
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp4", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	x.OtherPort = portOf(listener.Addr())
	x.OwnPort, err = FreePort(t.Context(), Forward{Protocol: "tcp", HostIP: "127.0.0.1"})
	must(t, err)
	text, err := json.Marshal(x)
	must(t, err)
	kernel, err := os.Open(filepath.Join(dir, "kernel"))
	must(t, err)
	files := &Files{}
	return dir, Config{
		Accel: AccelTCG, Kernel: &Kernel{Path: files.AddPlain(kernel), Cmdline: string(text)}, Files: files,
		Forwards: []Forward{{Protocol: "tcp", HostPort: x.OwnPort, Port: 80}},
	}
}
