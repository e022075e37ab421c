// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"cloudnative.tw/drover/test/assert"
)

// Process is a program that a test runs and that ends with it.
type Process struct {
	process *childProcess
	output  lockedBuffer
}

// StartProcess starts a program with the test's environment and env on top.
func StartProcess(binary string, args, env []string) (*Process, error) {
	return StartProcessAs(nil, binary, args, env)
}

// StartProcessAs starts a program as a user; nil means the user of the test.
func StartProcessAs(user *syscall.Credential, binary string, args, env []string) (*Process, error) {
	return startProcess(func(cmd *exec.Cmd) { cmd.SysProcAttr.Credential = user }, binary, args, env)
}

// StartProcessWithFiles starts a program that has these files from descriptor 3 on.
func StartProcessWithFiles(files []*os.File, binary string, args, env []string) (*Process, error) {
	return startProcess(func(cmd *exec.Cmd) { cmd.ExtraFiles = files }, binary, args, env)
}

func startProcess(configure func(*exec.Cmd), binary string, args, env []string) (*Process, error) {
	p := &Process{}
	p.process = startChild(configure, binary, args, env, &p.output)
	if p.process.pid == 0 {
		<-p.process.done
		return nil, p.process.err
	}
	return p, nil
}

// Stop ends the process by SIGTERM. It returns an error if the process did not end
// cleanly.
func (p *Process) Stop() error { return p.process.stopBySignal(syscall.SIGTERM) }

// Kill ends the process by SIGKILL.
func (p *Process) Kill() error { return p.process.kill() }

// PID of the process.
func (p *Process) PID() int { return p.process.pid }

// HasEnded reports whether the process has ended.
func (p *Process) HasEnded() bool { return p.process.hasEnded() }

// Output returns the output of the process so far.
func (p *Process) Output() string { return p.output.String() }

// TakeOutput returns the output since the last call, and drops it.
func (p *Process) TakeOutput() string { return p.output.takeText() }

// Wait waits until the process ends by itself, and returns how it ended.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.process.done:
		return p.process.err
	case <-ctx.Done():
		return fmt.Errorf("the process has not ended: %w", context.Cause(ctx))
	}
}

// childProcess is a child that ends with this process.
type childProcess struct {
	pid  int
	done chan struct{}
	err  error
}

// startChild keeps a thread for the child, because the kernel treats the end of
// the thread that started a child as the parent's death.
func startChild(configure func(*exec.Cmd), binary string, args, env []string, output io.Writer) *childProcess {
	p := &childProcess{done: make(chan struct{})}
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		cmd := exec.CommandContext(context.Background(), binary, args...)
		cmd.Env = append(os.Environ(), env...)
		cmd.Stdout, cmd.Stderr = output, output
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		configure(cmd)
		p.err = cmd.Start()
		if p.err == nil {
			p.pid = cmd.Process.Pid
		}
		close(started)
		if p.err == nil {
			p.err = cmd.Wait()
		}
	}()
	<-started
	return p
}

func (p *childProcess) hasEnded() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *childProcess) exitError() error {
	if p.err == nil {
		return errors.New("exit status 0")
	}
	return p.err
}

// stopBySignal signals the child and waits for it; it kills a child that does not end.
func (p *childProcess) stopBySignal(sig syscall.Signal) error {
	if p.hasEnded() {
		return fmt.Errorf("the process had already ended: %w", p.exitError())
	}
	if err := syscall.Kill(p.pid, sig); err != nil {
		return err
	}
	waitErr := assert.Poll(context.Background(), "the end of process "+strconv.Itoa(p.pid), func() error {
		return assert.ErrorUnless(p.hasEnded(), "the process is still running")
	})
	if waitErr == nil {
		return p.err
	}
	err := syscall.Kill(p.pid, syscall.SIGKILL)
	<-p.done
	return errors.Join(fmt.Errorf("%w: the process was killed", waitErr), err)
}

// lockedBuffer can be read while it is written.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func (b *lockedBuffer) takeText() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.buf.String()
	b.buf = bytes.Buffer{}
	return text
}

// kill ends the child by SIGKILL.
func (p *childProcess) kill() error {
	err := p.stopBySignal(syscall.SIGKILL)
	if _, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil
	}
	return err
}

// How long a program may take. BuildTimeout is for those that may have to build Helm or an image.
const (
	CommandTimeout = 3 * time.Minute
	BuildTimeout   = 10 * time.Minute
)

// RunCommand runs a program to its end and returns what it printed.
func RunCommand(t testing.TB, within time.Duration, env []string, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), within) // it also runs at the end of a test
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

// MustRunCommand is RunCommand for a program that must succeed.
func MustRunCommand(t testing.TB, within time.Duration, env []string, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := RunCommand(t, within, env, name, args...)
	assert.Require(t, err == nil, "%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, stdout, stderr)
	return stdout, stderr
}

// RunKubectl runs the kubectl in bin/drover, which must succeed.
func RunKubectl(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string) {
	t.Helper()
	binary, err := DroverBinary()
	assert.NoError(t, err)
	return MustRunCommand(t, CommandTimeout, []string{"KUBECONFIG=" + kubeconfig}, binary, append([]string{"kubectl"}, args...)...)
}

// helm has the path of the Helm that hack/tools/helm pins, once Helm is built.
var helm struct {
	sync.Mutex
	path string
}

// HelmPath returns the path of the Helm that hack/tools/helm pins, and builds Helm if it is missing.
func HelmPath(t testing.TB) string {
	t.Helper()
	helm.Lock()
	defer helm.Unlock()
	if helm.path == "" {
		root, err := RepositoryRoot()
		assert.NoError(t, err)
		out, _ := MustRunCommand(t, BuildTimeout, nil, filepath.Join(root, "hack", "tool.sh"), "helm")
		helm.path = strings.TrimSpace(out)
	}
	return helm.path
}

// RunHelm runs Helm, which must succeed.
func RunHelm(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := TryHelm(t, kubeconfig, args...)
	assert.Require(t, err == nil, "helm %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	return stdout, stderr
}

// TryHelm runs Helm without the settings of the user who runs the test.
func TryHelm(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir()
	env := []string{"KUBECONFIG=" + kubeconfig, "HELM_CACHE_HOME=" + dir, "HELM_CONFIG_HOME=" + dir, "HELM_DATA_HOME=" + dir}
	return RunCommand(t, CommandTimeout, env, HelmPath(t), args...)
}

// listening is the state in /proc/net/tcp of a socket that accepts connections (TCP_LISTEN).
const listening = 10

// Get is GetFrom for the process.
func (p *Process) Get(ctx context.Context, path string) ([]byte, error) {
	return GetFrom(ctx, p.PID(), path)
}

// GetFrom requests a path from a process by HTTP. It tries all addresses at which the process listens,
// because tests let programs choose their ports.
func GetFrom(ctx context.Context, pid int, path string) ([]byte, error) {
	addresses, err := listenAddresses(pid)
	if err != nil {
		return nil, err
	}
	errs := []error{fmt.Errorf("process %d does not have %s", pid, path)}
	for _, address := range addresses {
		content, err := getOnce(ctx, "http://"+address+path)
		if err == nil {
			return content, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// listenAddresses returns the IPv4 addresses at which a process accepts TCP connections.
func listenAddresses(pid int) (addresses []string, err error) {
	proc, err := procfs.NewProc(pid)
	if err != nil {
		return nil, err
	}
	files, err := proc.FileDescriptorTargets()
	if err != nil {
		return nil, err
	}
	open := strings.Join(files, " ")
	kernel, err := procfs.NewDefaultFS()
	if err != nil {
		return nil, err
	}
	sockets, err := kernel.NetTCP() //nolint:staticcheck // netlink, its replacement, would be a library for one table
	for _, s := range sockets {
		if s.St == listening && strings.Contains(open, fmt.Sprintf("socket:[%d]", s.Inode)) {
			addresses = append(addresses, net.JoinHostPort(s.LocalAddr.String(), strconv.FormatUint(s.LocalPort, 10)))
		}
	}
	return addresses, err
}

// oneRequest closes its connections after a request: an open one would count as a connection of the process.
var oneRequest = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

func getOnce(ctx context.Context, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := oneRequest.Do(request)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(answer.Body)
	if err = errors.Join(err, answer.Body.Close()); err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, answer.Status)
	}
	return content, err
}

// Metrics is the text of a program's metrics page.
type Metrics []byte

// Sum returns the sum of the metrics with a name whose lines contain all of the texts.
func (m Metrics) Sum(name string, labels ...string) (sum float64) {
	for line := range strings.Lines(string(m)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, name+"{") && !strings.HasPrefix(line, name+" ") {
			continue
		}
		has := true
		for _, text := range labels {
			has = has && strings.Contains(line, text)
		}
		value, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if has && err == nil {
			sum += value
		}
	}
	return sum
}

// ReadMetrics reads the metrics page of the process.
func (p *Process) ReadMetrics(t testing.TB) Metrics {
	t.Helper()
	page, err := p.Get(t.Context(), "/metrics")
	assert.NoError(t, err)
	return page
}
