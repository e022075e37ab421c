// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/test/assert"
)

// secondDocker is a Docker Engine that takes the place of the other one for a while. It runs
// while a world needs it, and has neither images nor containers.
type secondDocker struct {
	mu      sync.Mutex
	users   int
	dir     string
	process *exec.Cmd
}

// stopWithin is how long it may take to end on a busy machine.
const stopWithin = time.Minute

// acquire returns the engine's address. The caller must release it.
func (d *secondDocker) acquire() (host string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users == 0 {
		if err := d.start(); err != nil {
			return "", errors.Join(err, d.stop())
		}
	}
	d.users++
	return d.host(), nil
}

// release ends the engine that no world needs any more.
func (d *secondDocker) release() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.users--; d.users > 0 {
		return nil
	}
	return d.stop()
}

func (d *secondDocker) host() string { return "unix://" + filepath.Join(d.dir, "docker.sock") }

// start starts it in a separate network namespace, where its bridge is not that of the other one.
func (d *secondDocker) start() (err error) {
	if d.dir, err = os.MkdirTemp("", "drover-d2-"); err != nil { // short, as sockets need
		return err
	}
	// Until version 23 an engine's id is derived from a key, which all engines of a host share by default.
	config := filepath.Join(d.dir, "daemon.json")
	if err := os.WriteFile(config, fmt.Appendf(nil, `{"deprecated-key-path": %q}`, filepath.Join(d.dir, "key.json")), 0o600); err != nil {
		return err
	}
	d.process = exec.CommandContext(context.Background(), "dockerd", "--config-file", config, "--host", d.host(), "--data-root", filepath.Join(d.dir, "data"),
		"--exec-root", filepath.Join(d.dir, "exec"), "--pidfile", filepath.Join(d.dir, "pid"), "--iptables=false", "--ip6tables=false", "--userland-proxy=false")
	d.process.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	if err := d.process.Start(); err != nil {
		d.process = nil
		return fmt.Errorf("a second Docker Engine, which hack/dockerd.sh installs: %w", err)
	}
	c, err := client.New(client.WithHost(d.host()))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return assert.Poll(context.Background(), "a second Docker Engine answers", func() error {
		_, err := c.Ping(context.Background(), client.PingOptions{})
		return err
	})
}

func (d *secondDocker) stop() error {
	if d.process != nil {
		kill := time.AfterFunc(stopWithin, func() { _ = d.process.Process.Kill() })
		_ = d.process.Process.Signal(syscall.SIGTERM)
		_ = d.process.Wait()
		kill.Stop()
		d.process = nil
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, d.dir+"/") {
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}

// checkEmpty fails if Drover made a container on this engine, to which nothing is bound.
func (*secondDocker) checkEmpty(ctx context.Context, host string, w *World) error {
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	found, err := listContainers(ctx, c, w)
	if len(found) > 0 {
		return fmt.Errorf("the other engine has the containers %v", found)
	}
	return err
}
