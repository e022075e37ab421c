// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/qmp"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// model is a machine of Drover's whose guest never ran: its command line, and the
// folder with its files.
type model struct {
	args []string
	dir  string
}

// modelFiles are the files that Drover created.
var modelFiles = []string{"root.qcow2", "seed.iso"}

// newModel creates one and removes it. It is also the first VM, for which connections
// are opened.
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
	dir := filepath.Join(b.engineDir(), "vms", string(vm.UID))
	if m.args, err = commandLine(dir); err != nil {
		return m, err
	}
	m.dir = filepath.Join(b.Temp, name)
	if err := copyFiles(m.dir, dir); err != nil {
		return m, err
	}
	b.Notef("Started directly: %s", strings.Join(m.args, " "))
	return m, b.deleteVM(ctx, name)
}

// commandLine returns that of the machine in a folder, changed so that the guest
// runs immediately.
func commandLine(dir string) ([]string, error) {
	pid, err := os.ReadFile(filepath.Join(dir, "pid"))
	if err != nil {
		return nil, err
	}
	line, err := os.ReadFile(filepath.Join("/proc", strings.TrimSpace(string(pid)), "cmdline"))
	if err != nil {
		return nil, err
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	running := slices.DeleteFunc(args, func(arg string) bool { return arg == "-S" })
	if len(running) < 2 {
		return nil, fmt.Errorf("the command line of process %s is %q", pid, line)
	}
	return running, nil
}

func copyFiles(to, from string) error {
	err := os.Mkdir(to, 0o700)
	for _, name := range modelFiles {
		if err == nil {
			err = framework.CopyFile(filepath.Join(from, name), filepath.Join(to, name))
		}
	}
	return err
}

// startDirectly starts the model's command line, and ends it.
func (b *benchmark) startDirectly(ctx context.Context, c *bench.Controller, m model, n int) (answers, output time.Duration, err error) {
	dir := filepath.Join(b.Temp, fmt.Sprintf("direct-%d", n))
	if err := copyFiles(dir, m.dir); err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := b.AwaitQuiet(ctx, c); err != nil {
		return 0, 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, operationTimeout, errors.New("QEMU was not up in time"))
	defer cancel()
	var printed strings.Builder
	cmd := exec.CommandContext(ctx, m.args[0], m.args[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &printed, &printed
	if cmd.ExtraFiles, err = b.openInherited(ctx, dir); err != nil {
		return 0, 0, err
	}
	defer closeAll(cmd.ExtraFiles)
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	answers, output, err = watchStart(ctx, dir, begin)
	cancel()
	_ = cmd.Wait() // it was killed
	if err != nil {
		err = fmt.Errorf("%w; QEMU printed: %s", err, printed.String())
	}
	return answers, output, err
}

// openInherited opens the files that QEMU gets as descriptors, in the driver's order: its
// run lock, sockets and serial log, then the seed, the root disk, the image below that, and the
// agent's socket.
func (b *benchmark) openInherited(ctx context.Context, dir string) (files []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	open := func(path string, flags int) {
		if err == nil {
			var f *os.File
			f, err = os.OpenFile(path, flags, 0o600)
			files = append(files, f)
		}
	}
	listen := func(name string) {
		if err == nil {
			var f *os.File
			f, err = listenOn(ctx, filepath.Join(dir, name))
			files = append(files, f)
		}
	}
	open(os.DevNull, os.O_RDWR)
	for _, name := range []string{machine.ControlSocket, machine.EventsSocket, machine.SerialSocket} {
		listen(name)
	}
	open(filepath.Join(dir, machine.SerialLogFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND)
	open(filepath.Join(dir, machine.SeedFile), os.O_RDONLY)
	open(filepath.Join(dir, "root.qcow2"), os.O_RDWR)
	open(b.guest, os.O_RDONLY)
	listen(machine.AgentSocket)
	return files, err
}

// listenOn makes a unix socket, and returns the descriptor to pass on.
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

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// watchStart observes a QEMU as the driver does and as the benchmark does.
func watchStart(ctx context.Context, dir string, begin time.Time) (answers, output time.Duration, err error) {
	up := make(chan time.Time, 1)
	go func() {
		defer close(up)
		for ctx.Err() == nil {
			if c, err := qmp.Dial(ctx, filepath.Join(dir, "ctl.sock"), nil); err == nil {
				up <- time.Now()
				c.Close()
				return
			}
			_ = bench.Pause(ctx, 5*time.Millisecond)
		}
	}()
	printed, err := firstOutput(ctx, filepath.Join(dir, "serial.log"))
	if err != nil {
		return 0, 0, err
	}
	answered, ok := <-up
	if !ok {
		return 0, 0, context.Cause(ctx)
	}
	return answered.Sub(begin), printed.Sub(begin), nil
}
