// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/test/assert"
)

// buildTimeout bounds a build of a large program, on a slow and busy machine.
const buildTimeout = 15 * time.Minute

// Cluster is a `drover up` that runs as a child of the test: a real kube-apiserver
// with the VirtualMachine API installed. It ends with the test.
type Cluster struct {
	// Config connects as the cluster's admin user.
	Config *rest.Config
	// Kubeconfig is the path of a kubeconfig for the same user, for programs.
	Kubeconfig string
	// DataDir is the data dir of `drover up`.
	DataDir string

	binary  string
	args    []string
	output  lockedBuffer
	temp    bool
	process *childProcess
}

// ClusterOptions say how a cluster differs from the default: a temporary data dir on
// a free port, without the controller and without waiting for the disk.
type ClusterOptions struct {
	// DataDir is used and kept; empty means a temporary one.
	DataDir string
	// WithController runs Drover's controller too.
	WithController bool
	// Durable makes etcd wait for the disk, as users' clusters do.
	Durable bool
	// Args are further flags of `drover up`.
	Args []string
	// Binary to run; empty means bin/drover, built if it is missing.
	Binary string
}

// StartCluster starts a cluster for one test and stops it with the test, whose
// log gets what the cluster printed if the test failed.
func StartCluster(t testing.TB, opts ClusterOptions) *Cluster {
	t.Helper()
	c, err := NewCluster(opts)
	assert.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("drover up printed:\n%s", c.Output())
		}
		assert.NoError(t, c.Close())
	})
	return c
}

// RunTests runs a package's tests with one cluster that they share; get it with the
// pointer, which is set before the first test runs:
//
//	var cluster *framework.Cluster
//
//	func TestMain(m *testing.M) { os.Exit(framework.Main(m, &cluster, framework.ClusterOptions{})) }
func RunTests(m *testing.M, shared **Cluster, opts ClusterOptions) int {
	c, err := NewCluster(opts)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*shared = c
	code := m.Run()
	if code != 0 {
		fmt.Fprintf(os.Stderr, "drover up printed:\n%s", c.Output())
	}
	if err := c.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return max(code, 1)
	}
	return code
}

// NewCluster starts a cluster that the caller must Close.
func NewCluster(opts ClusterOptions) (*Cluster, error) {
	c := &Cluster{DataDir: opts.DataDir, binary: opts.Binary}
	if err := c.setDefaults(); err != nil {
		return nil, err
	}
	c.Kubeconfig = filepath.Join(c.DataDir, "kubeconfig")
	c.args = append([]string{"up", "--data-dir", c.DataDir, "--port", "0"}, opts.Args...)
	if !opts.WithController {
		c.args = append(c.args, "--without-controller")
	}
	if !opts.Durable {
		c.args = append(c.args, "--unsafe-no-fsync")
	}
	if err := c.Start(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) setDefaults() error {
	if c.binary == "" {
		binary, err := DroverBinary()
		if err != nil {
			return err
		}
		c.binary = binary
	}
	if c.DataDir != "" {
		return nil
	}
	dir, err := os.MkdirTemp("", "drover-test-")
	c.DataDir, c.temp = dir, true
	return err
}

// Start starts a cluster that was stopped or killed and waits until it is ready. At
// most maxStarts do so at a time on this host. A start that was too slow for a limit of
// drover up is tried once more, which nothing else in tests is.
func (c *Cluster) Start() error {
	if c.process != nil && !c.process.hasEnded() {
		return errors.New("drover up is running already")
	}
	unlock, err := lockStart()
	if err != nil {
		return err
	}
	defer unlock()
	if err = c.tryStart(); err != nil && strings.Contains(err.Error(), "was not ready within") {
		fmt.Fprintln(os.Stderr, "RETRY: drover up is started once more:", err)
		err = c.tryStart()
	}
	return err
}

func (c *Cluster) tryStart() error {
	// The file of a killed cluster proves nothing about the new one.
	if err := os.Remove(c.readyFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	c.process = startChild(func(*exec.Cmd) {}, c.binary, c.args, nil, &c.output)
	if err := c.waitUntilReady(); err != nil {
		return fmt.Errorf("%w; it printed:\n%s", err, c.Output())
	}
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	// Tests should not wait for a limit that protects busy clusters.
	config.QPS = -1
	c.Config = config
	return nil
}

func (c *Cluster) readyFile() string { return filepath.Join(c.DataDir, "run", "ready") }

// waitUntilReady returns an error if the program ends first, as it does when one of its parts is
// not ready in time.
func (c *Cluster) waitUntilReady() error {
	ended := false
	err := assert.Poll(context.Background(), "drover up is ready", func() error {
		if ended = c.process.hasEnded(); ended {
			return nil
		}
		_, err := os.Stat(c.readyFile())
		return err
	})
	if ended {
		err = fmt.Errorf("drover up ended before it was ready: %w", c.process.exitError())
	}
	return err
}

// Stop ends the cluster as Ctrl-C does. Its data stays for Start. It returns an
// error if the cluster did not end cleanly.
func (c *Cluster) Stop() error {
	if err := c.process.stopBySignal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop drover up: %w; it printed:\n%s", err, c.Output())
	}
	return nil
}

// Interrupt ends the cluster as Ctrl-C does, and returns how it ended.
func (c *Cluster) Interrupt() error { return c.process.stopBySignal(syscall.SIGINT) }

// Kill ends the cluster as a crash does. Its data stays for Start.
func (c *Cluster) Kill() error { return c.process.killTree() }

// Close stops the cluster, if it runs, and removes its data if that was
// temporary.
func (c *Cluster) Close() error {
	var err error
	if c.process != nil && !c.process.hasEnded() {
		err = c.Stop()
	}
	if !c.temp {
		return err
	}
	return errors.Join(err, os.RemoveAll(c.DataDir))
}

// PID of the running `drover up`.
func (c *Cluster) PID() int { return c.process.pid }

// Output returns what it printed so far, over all starts.
func (c *Cluster) Output() string { return c.output.String() }
