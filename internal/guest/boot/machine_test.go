// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package boot_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/datadisk"
	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bugs"
	"cloudnative.tw/drover/test/framework"
)

// program builds the image's program, once.
var program = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "drover-guest-program-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", dir, "./testdata/program")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the program: %w\n%s", err, out)
	}
	return os.ReadFile(filepath.Join(dir, "program"))
})

// busyBox has the modprobe of the image.
var busyBox = sync.OnceValues(func() ([]byte, error) {
	path, err := exec.CommandContext(context.Background(), "../../../hack/busybox.sh").Output()
	if err != nil {
		return nil, fmt.Errorf("hack/busybox.sh: %w", err)
	}
	return os.ReadFile(strings.TrimSpace(string(path)))
})

const (
	passwd = "root:x:0:0::/root:/bin/sh\napp:x:1000:1001::/home/app:/bin/sh\n" //nolint:gosec // a file of users
	groups = "root:x:0:\napp:x:1001:\nstaff:x:50:app\naudio:x:29:app\n"
)

// writeImage writes a root with the program under several names, more files in /bin, and links in place of resolv.conf
// and lib.
func writeImage(t *testing.T, path string, more map[string][]byte, change func(root map[string]*erofs.Inode)) {
	t.Helper()
	f, err := os.Create(path)
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	w := erofs.New(&diskspace.File{File: f, Disk: &diskspace.Disk{Dir: filepath.Dir(path)}}, 1<<30)
	file := func(mode uint32, content []byte) *erofs.Inode {
		data, err := w.Append(bytes.NewReader(content))
		assert.NoError(t, err)
		return &erofs.Inode{Mode: unix.S_IFREG | mode, Data: data}
	}
	folder := func(children map[string]*erofs.Inode) *erofs.Inode {
		return &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Children: children}
	}
	code, err := program()
	assert.NoError(t, err)
	tools, err := busyBox()
	assert.NoError(t, err)
	run := file(0o755, code)
	root := folder(map[string]*erofs.Inode{
		"bin": folder(map[string]*erofs.Inode{
			"program": run, "plain": file(0o644, []byte("plain")), "rubbish": file(0o755, []byte("rubbish")),
			"busybox": file(0o755, tools), "script": file(0o755, []byte("#!/no/interpreter\n")),
		}),
		"etc": folder(map[string]*erofs.Inode{
			"passwd": file(0o644, []byte(passwd)), "group": file(0o644, []byte(groups)),
			"resolv.conf": {Mode: unix.S_IFLNK | 0o777, Target: "/elsewhere"},
		}),
		"lib":  {Mode: unix.S_IFLNK | 0o777, Target: "usr/lib"},
		"usr":  folder(map[string]*erofs.Inode{"lib": folder(map[string]*erofs.Inode{})}),
		"sbin": folder(map[string]*erofs.Inode{"init": run}),
		"tmp":  {Mode: unix.S_IFDIR | 0o1777, Children: map[string]*erofs.Inode{}},
	})
	for name, content := range more {
		root.Children["bin"].Children[name] = file(0o644, content)
	}
	change(root.Children)
	_, err = w.Finish(root, "test")
	assert.NoError(t, err)
}

// machine is a running machine, or one that has ended.
type machine struct {
	t         *testing.T
	dir, root string
	// modules is the disk with the kernel's modules, from the first start on.
	modules string
	config  config.Config
	process *exec.Cmd
	ended   chan error
	console *bytes.Buffer
}

// seededInitramfs is the environment variable with the initramfs of a guest that has all bugs of package bugs, and
// seededBug has its kernel put the enabled bug into the environment of its first program.
const seededInitramfs = "DROVER_TEST_SEEDED_INITRAMFS"

var seededBug = bugs.Variable + "=" + os.Getenv(bugs.Variable)

// newMachine returns a machine that has not been started, whose data disk has a size, 0 for none.
func newMachine(t *testing.T, size int64) *machine {
	t.Helper()
	return newMachineWithFiles(t, size, nil)
}

// newMachineWithFiles is newMachine with more files in the image's /bin.
func newMachineWithFiles(t *testing.T, size int64, more map[string][]byte) *machine {
	t.Helper()
	return makeMachine(t, size, more, func(map[string]*erofs.Inode) {})
}

// newMachineOf is newMachine with a change of the image's root.
func newMachineOf(t *testing.T, size int64, change func(root map[string]*erofs.Inode)) *machine {
	t.Helper()
	return makeMachine(t, size, nil, change)
}

func makeMachine(t *testing.T, size int64, more map[string][]byte, change func(root map[string]*erofs.Inode)) *machine {
	t.Helper()
	m := &machine{t: t, dir: t.TempDir()}
	m.root = filepath.Join(m.dir, "root")
	writeImage(t, m.root, more, change)
	m.config = config.Config{
		Hostname: "box", Args: []string{"program", "exit", "0"}, Network: config.Network{Address: netip.MustParsePrefix("10.0.2.15/24"), Gateway: netip.MustParseAddr("10.0.2.2")},
		Disks: config.Disks{Root: config.RootSerial, Modules: config.ModulesSerial}, Nonce: bytes.Repeat([]byte{9}, config.NonceBytes),
	}
	if size > 0 {
		m.config.Disks.Data = config.DataSerial
		disk, err := os.Create(m.path(config.DataSerial))
		assert.NoError(t, err)
		defer func() { _ = disk.Close() }()
		assert.NoError(t, datadisk.Write(disk, size))
	}
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) read(name string) string {
	m.t.Helper()
	text, err := os.ReadFile(m.path(name))
	assert.NoError(m.t, err)
	return string(text)
}

// start starts QEMU.
func (m *machine) start() {
	m.t.Helper()
	guest, err := framework.BuildImageGuest()
	assert.NoError(m.t, err)
	if bugs.IsSeeded() {
		guest.Initramfs = os.Getenv(seededInitramfs)
	}
	if m.modules == "" {
		m.modules = m.path("modules")
		assert.NoError(m.t, os.Symlink(guest.Modules, m.modules))
	}
	text, err := config.Encode(m.config)
	assert.NoError(m.t, err)
	assert.NoError(m.t, os.WriteFile(m.path("config"), text, 0o600))
	assert.NoError(m.t, errors.Join(os.WriteFile(m.path("log"), nil, 0o600), os.WriteFile(m.path("errors"), nil, 0o600)))
	assert.NoError(m.t, os.WriteFile(m.path("result"), make([]byte, config.ResultBytes), 0o600))
	args := m.arguments(guest)
	m.console, m.ended = &bytes.Buffer{}, make(chan error, 1)
	m.process = exec.CommandContext(m.t.Context(), framework.QEMUBinary(m.t), args...)
	m.process.Stdout, m.process.Stderr = m.console, m.console
	assert.NoError(m.t, m.process.Start())
	process, ended, over := m.process, m.ended, make(chan struct{})
	go func() {
		ended <- process.Wait()
		close(over)
	}()
	m.t.Cleanup(func() {
		_ = process.Process.Kill()
		<-over // then the console has all
		if m.t.Failed() {
			m.t.Logf("console: %s\nlog: %.4000s\nresult: %s", m.console, m.read("log"), m.read("result"))
		}
	})
}

// arguments returns QEMU's. The network has no way out.
func (m *machine) arguments(guest framework.ImageGuest) []string {
	args := []string{
		"-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35,usb=off,vmport=off", "-accel", "tcg,tb-size=64", "-cpu", "max", "-m", "128",
		"-kernel", guest.Kernel, "-initrd", guest.Initramfs, "-append", "console=ttyS0 panic=-1 quiet no_timer_check cryptomgr.notests 8250.nr_uarts=1 " + seededBug,
		"-fw_cfg", "name=" + config.File + ",file=" + m.path("config"),
		"-netdev", "user,id=net,restrict=on", "-device", "virtio-net-pci,netdev=net,romfile=", "-device", "virtio-rng-pci", "-device", "pvpanic",
		"-device", "virtio-serial-pci", "-serial", "stdio", "-qmp", "unix:" + m.path("qmp") + ",server=on,wait=off",
	}
	args = append(args, disk(config.RootSerial, m.root, true)...)
	if m.config.Disks.Data != "" {
		args = append(args, disk(config.DataSerial, m.path(config.DataSerial), false)...)
	}
	if m.config.Disks.Modules != "" {
		args = append(args, disk(config.ModulesSerial, m.modules, true)...)
	}
	for _, v := range m.config.Volumes {
		args = append(args, disk(v.Serial, m.path(v.Serial), v.ReadOnly)...)
	}
	args = append(args, disk(config.ResultSerial, m.path("result"), false)...)
	for id, port := range map[string]string{"log": config.StdoutPort, "errors": config.StderrPort, "agent": config.AgentPort} {
		backend := "file,id=" + id + ",path=" + m.path(id)
		if id == "agent" {
			backend = "socket,id=agent,server=on,wait=off,path=" + m.path("agent")
		}
		args = append(args, "-chardev", backend, "-device", "virtserialport,chardev="+id+",name="+port)
	}
	return args
}

func disk(serial, path string, readOnly bool) []string {
	node := fmt.Sprintf(`{"driver":"raw","node-name":%q,"read-only":%t,"discard":"unmap","file":{"driver":"file","filename":%q,"discard":"unmap"}}`, serial, readOnly, path)
	return []string{"-blockdev", node, "-device", "virtio-blk-pci,drive=" + serial + ",serial=" + serial}
}

// end waits for QEMU to end and returns what the guest claims.
func (m *machine) end() config.Claim {
	m.t.Helper()
	assert.NoError(m.t, assert.Receive(m.t, "the end of QEMU", m.ended))
	claim, err := config.ReadClaim(strings.NewReader(m.read("result")))
	assert.NoError(m.t, err)
	return claim
}

// pressPower presses the power button.
func (m *machine) pressPower() {
	m.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(m.t.Context(), "unix", m.path("qmp"))
	assert.NoError(m.t, err)
	defer func() { _ = conn.Close() }()
	_, err = conn.Write([]byte(`{"execute":"qmp_capabilities"}{"execute":"system_powerdown"}`))
	assert.NoError(m.t, err)
	for seen, b := "", make([]byte, 1024); strings.Count(seen, `"return"`) < 2; {
		n, err := conn.Read(b)
		assert.NoError(m.t, err)
		seen += string(b[:n])
	}
}

// dial connects to the agent, as each supervisor of a machine does.
func (m *machine) dial() *client.Client {
	m.t.Helper()
	var conn net.Conn
	assert.Eventually(m.t, "QEMU to listen", func(testing.TB) (err error) {
		conn, err = (&net.Dialer{}).DialContext(m.t.Context(), "unix", m.path("agent"))
		return err
	})
	c, err := client.New(m.t.Context(), conn, m.config.Nonce)
	assert.NoError(m.t, err)
	m.t.Cleanup(func() { _ = c.Close() })
	return c
}

// exec runs the image's program, which prints nothing to stderr.
func (m *machine) exec(c *client.Client, change func(*client.Command), args ...string) (client.Exit, string) {
	m.t.Helper()
	var out, errs bytes.Buffer
	command := client.Command{Exec: wire.Exec{Args: append([]string{"program"}, args...)}, Stdout: &out, Stderr: &errs}
	if change != nil {
		change(&command)
	}
	exit, err := c.Exec(m.t.Context(), command)
	assert.NoError(m.t, err)
	if errs.Len() > 0 {
		m.t.Errorf("%q prints %s", args, errs.String())
	}
	return exit, out.String()
}

// report returns the report of the program.
type report struct {
	UID, GID                                                            int
	Groups                                                              []int
	Env                                                                 []string
	Dir, Hostname, Hosts, Resolv, Mounts, Limits, Caps, Modprobe, Stdin string
	Inits, Settings                                                     string
	Disk                                                                int64
	Terminal                                                            bool
}

func (m *machine) report(c *client.Client, change func(*client.Command)) (r report) {
	m.t.Helper()
	exit, out := m.exec(c, change, "report")
	if err := json.Unmarshal([]byte(out), &r); err != nil || exit.Code != 0 {
		m.t.Fatalf("the report is %q, %+v, %v", out, exit, err)
	}
	return r
}

// waitLog waits for a text in the log.
func (m *machine) waitLog(text string) {
	m.t.Helper()
	m.waitFor("log", text)
}

// waitFor waits for a text in a file of output.
func (m *machine) waitFor(file, text string) {
	m.t.Helper()
	assert.Eventually(m.t, fmt.Sprintf("%q in the file %s", text, file), func(testing.TB) error {
		return assert.ErrorUnless(strings.Contains(m.read(file), text), "it is not there")
	})
}
