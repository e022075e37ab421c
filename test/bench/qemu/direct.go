// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/qmp"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// model is a machine of Drover whose guest never ran: QEMU's command line, and the files that QEMU
// inherits, from firstDescriptor on.
type model struct {
	args  []string
	files []inherited
}

// firstDescriptor is the first descriptor after the standard streams.
const firstDescriptor = 3

// inherited is a listening socket or a file that QEMU inherits as a descriptor.
type inherited struct {
	// socket is the name of a socket, or "" for a file.
	socket string
	// path is the path of a file, and flags are the flags of open.
	path  string
	flags int
	// name is the name of the copy for a machine; it is empty if all machines share the file.
	name string
}

// newModel creates a paused VM, copies its machine and deletes the VM. With this first VM, Drover
// opens its connections, so that later measurements do not include that.
func (b *benchmark) newModel(ctx context.Context) (m model, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, operationTimeout, errors.New("the model was not ready in time"))
	defer cancel()
	const name = "model"
	from := b.log.Len()
	vm, err := b.createVM(ctx, name, api.ActionPaused)
	if err != nil {
		return m, err
	}
	if _, err := b.waitForPhase(ctx, from, name, api.PhasePaused); err != nil {
		return m, err
	}
	process, err := b.qemuOf(vm)
	if err != nil {
		return m, err
	}
	if m, err = copyModel(process, b.folderOf(vm), filepath.Join(b.Temp, name)); err != nil {
		return m, err
	}
	b.Notef("Started directly: %s", strings.Join(m.args, " "))
	return m, b.deleteVM(ctx, name)
}

// folderOf returns the folder of a VM's machine.
func (b *benchmark) folderOf(vm *api.VirtualMachine) string {
	return filepath.Join(b.engine, "vms", string(vm.UID))
}

// qemuOf returns the QEMU of a VM.
func (b *benchmark) qemuOf(vm *api.VirtualMachine) (procfs.Proc, error) {
	text, err := os.ReadFile(filepath.Join(b.folderOf(vm), "pid"))
	if err != nil {
		return procfs.Proc{}, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return procfs.Proc{}, err
	}
	return procfs.NewProc(pid)
}

var (
	// named matches the descriptors in a command line, socket those of sockets, and inSet those that
	// QEMU adds to descriptor sets.
	named  = regexp.MustCompile(`(?:\bfd=|\baddr\.str=|/proc/self/fd/)(\d+)`)
	socket = regexp.MustCompile(`\b(?:socket|stream),id=(\w+),(?:server=on,addr\.type=fd,addr\.str|fd)=(\d+)`)
	inSet  = regexp.MustCompile(`\bfd=(\d+),set=`)
)

// copyModel copies a machine into a folder, and changes the command line so that the guest runs at once.
func copyModel(process procfs.Proc, home, to string) (m model, err error) {
	if err := os.Mkdir(to, 0o700); err != nil {
		return m, err
	}
	args, err := process.CmdLine()
	if err != nil {
		return m, err
	}
	m.args = slices.DeleteFunc(args, func(arg string) bool { return arg == "-S" })
	line, last, sockets := strings.Join(m.args, " "), 0, map[int]string{}
	for _, fd := range numbersIn(named, line) {
		last = max(last, fd)
	}
	for _, found := range socket.FindAllStringSubmatch(line, -1) {
		fd, _ := strconv.Atoi(found[2])
		sockets[fd] = found[1] + ".sock"
	}
	moved, err := findMoved(process, last, numbersIn(inSet, line))
	if err != nil {
		return m, fmt.Errorf("descriptors of process %d, %s: %w", process.PID, line, err)
	}
	for fd := firstDescriptor; fd <= last; fd++ {
		file := inherited{socket: sockets[fd]}
		if file.socket == "" {
			if file, err = copyFile(process, cmp.Or(moved[fd], fd), home, to); err != nil {
				return m, err
			}
		}
		m.files = append(m.files, file)
	}
	return m, nil
}

// numbersIn returns the numbers that a pattern matches, in their order.
func numbersIn(pattern *regexp.Regexp, line string) (all []int) {
	for _, found := range pattern.FindAllStringSubmatch(line, -1) {
		number, _ := strconv.Atoi(found[1])
		all = append(all, number)
	}
	return all
}

// findMoved returns the new numbers of the descriptors in sets. QEMU copies these in their order before it opens other
// files, and closes the originals. So the copies have the first numbers after last, QEMU's last inherited descriptor.
func findMoved(process procfs.Proc, last int, sets []int) (map[int]int, error) {
	opened, err := process.FileDescriptors()
	if err != nil {
		return nil, err
	}
	slices.Sort(opened)
	moved := map[int]int{}
	for _, fd := range opened {
		path, err := os.Readlink(descriptorPath(process, int(fd)))
		if err != nil {
			return nil, err
		}
		if int(fd) > last && len(moved) < len(sets) && strings.HasPrefix(path, "/") {
			moved[sets[len(moved)]] = int(fd)
		}
	}
	if last == 0 || len(moved) < len(sets) {
		return nil, fmt.Errorf("only the descriptors %v were found", moved)
	}
	return moved, nil
}

// descriptorPath returns a path with which the file of a descriptor can be opened again.
func descriptorPath(process procfs.Proc, fd int) string {
	return fmt.Sprintf("/proc/%d/fd/%d", process.PID, fd)
}

// copyFile copies the file of a descriptor, unless all machines share the file.
func copyFile(process procfs.Proc, fd int, home, to string) (f inherited, err error) {
	opened := descriptorPath(process, fd)
	if f.path, err = os.Readlink(opened); err != nil {
		return f, err
	}
	info, err := process.FDInfo(strconv.Itoa(fd))
	if err != nil {
		return f, err
	}
	flags, err := strconv.ParseInt(info.Flags, 8, 32)
	if err != nil {
		return f, err
	}
	f.flags = int(flags) & (os.O_WRONLY | os.O_RDWR | os.O_APPEND)
	path, isRemoved := strings.CutSuffix(f.path, " (deleted)")
	if f.flags == os.O_RDONLY && !isRemoved && !strings.HasPrefix(path, home+"/") {
		return f, nil
	}
	f.name = filepath.Base(path)
	f.path = filepath.Join(to, f.name)
	return f, framework.CopyFile(opened, f.path)
}

// open opens the file, or a copy of it in the folder of a machine, or listens at the socket there.
func (f inherited) open(ctx context.Context, dir string) (*os.File, error) {
	switch {
	case f.socket != "":
		return listenOn(ctx, filepath.Join(dir, f.socket))
	case f.name == "":
		return os.OpenFile(f.path, f.flags, 0)
	}
	path := filepath.Join(dir, f.name)
	if err := framework.CopyFile(f.path, path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, f.flags, 0)
}

// direct is a machine that was started without Drover.
type direct struct {
	dir     string
	cmd     *exec.Cmd
	files   []*os.File
	printed strings.Builder
	// console is read and discarded.
	console net.Conn
}

// startDirectly starts the model's command line, and returns the times of watchStart.
func (b *benchmark) startDirectly(ctx context.Context, m model, n int) (d *direct, untilAnswer, untilOutput time.Duration, err error) {
	d = &direct{dir: filepath.Join(b.Temp, fmt.Sprintf("direct-%d", n))}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%w; QEMU printed: %s", err, d.printed.String()), d.end())
		}
	}()
	if err := os.Mkdir(d.dir, 0o700); err != nil {
		return d, 0, 0, err
	}
	if err := b.quiet(ctx); err != nil {
		return d, 0, 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, operationTimeout, errors.New("QEMU was not ready in time"))
	defer cancel()
	for _, f := range m.files {
		opened, err := f.open(ctx, d.dir)
		if err != nil {
			return d, 0, 0, err
		}
		d.files = append(d.files, opened)
	}
	cmd := exec.Command(m.args[0], m.args[1:]...) //nolint:noctx // end ends it
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = d.dir, &d.printed, &d.printed, d.files
	if d.console, err = new(net.Dialer).DialContext(ctx, "unix", filepath.Join(d.dir, machine.SerialSocket)); err != nil {
		return d, 0, 0, err
	}
	go func() { _, _ = io.Copy(io.Discard, d.console) }()
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return d, 0, 0, err
	}
	d.cmd = cmd
	untilAnswer, untilOutput, err = watchStart(ctx, d.dir, begin)
	return d, untilAnswer, untilOutput, err
}

// end ends the machine and removes its files.
func (d *direct) end() error {
	if d.cmd != nil {
		_ = d.cmd.Process.Kill()
		_ = d.cmd.Wait() // it was killed
	}
	if d.console != nil {
		_ = d.console.Close()
	}
	for _, f := range d.files {
		_ = f.Close()
	}
	return os.RemoveAll(d.dir)
}

// listenOn listens at a unix socket, and returns it as a file to pass on.
func listenOn(ctx context.Context, path string) (*os.File, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	socket := listener.(*net.UnixListener)
	socket.SetUnlinkOnClose(false)
	file, err := socket.File()
	return file, errors.Join(err, socket.Close())
}

// watchStart returns how long QEMU takes to answer by QMP, and the guest to print something.
func watchStart(ctx context.Context, dir string, begin time.Time) (untilAnswer, untilOutput time.Duration, err error) {
	up := make(chan time.Time, 1)
	go func() {
		defer close(up)
		for ctx.Err() == nil {
			if c, err := qmp.Dial(ctx, filepath.Join(dir, machine.ControlSocket), nil); err == nil {
				up <- time.Now()
				c.Close()
				return
			}
			_ = bench.Pause(ctx, 5*time.Millisecond)
		}
	}()
	printed, err := firstOutput(ctx, dir)
	if err != nil {
		return 0, 0, err
	}
	answered, ok := <-up
	if !ok {
		return 0, 0, context.Cause(ctx)
	}
	return answered.Sub(begin), printed.Sub(begin), nil
}
