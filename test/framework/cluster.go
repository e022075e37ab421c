// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	"cloudnative.tw/drover/test/framework/filelock"
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

// ClusterOptions say how a cluster differs from the default: a temporary data dir, a
// free port, no controller, and an etcd that does not sync its writes.
type ClusterOptions struct {
	// DataDir is used and kept; empty means a temporary one.
	DataDir string
	// WithController runs Drover's controller too.
	WithController bool
	// Durable makes etcd sync its writes to the disk, as users' clusters do.
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

// RunTests runs a package's tests with one cluster that they share. It sets the pointer
// to the cluster before the first test runs:
//
//	var cluster *framework.Cluster
//
//	func TestMain(m *testing.M) { os.Exit(framework.RunTests(m, &cluster, framework.ClusterOptions{})) }
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

// Start starts a cluster that was stopped or killed and waits until it is ready. At most
// maxStarts clusters start at a time on this host. If drover up was not ready within its
// time limit, Start tries once more. This is the only retry in tests.
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
	// A cluster that was killed has left its file.
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

// waitUntilReady returns an error if the program ends first, as drover up does when one of its
// components is not ready in time.
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

// Stop ends the cluster by SIGTERM and keeps its data for Start. It returns an error
// if the cluster did not end cleanly.
func (c *Cluster) Stop() error {
	if err := c.process.stopBySignal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop drover up: %w; it printed:\n%s", err, c.Output())
	}
	return nil
}

// Interrupt ends the cluster by SIGINT, and returns how it ended.
func (c *Cluster) Interrupt() error { return c.process.stopBySignal(syscall.SIGINT) }

// Kill ends the cluster as a crash does, and keeps its data for Start.
func (c *Cluster) Kill() error { return c.process.kill() }

// Close stops the cluster, if it runs, and removes its data dir if the dir is temporary.
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

// Output returns what drover up has printed so far, in all starts.
func (c *Cluster) Output() string { return c.output.String() }

// DroverBinary returns the path of the program that clusters run: DROVER_BIN if it is set, else
// bin/drover of this checkout, which make build builds.
func DroverBinary() (string, error) {
	if binary := os.Getenv("DROVER_BIN"); binary != "" {
		return binary, nil
	}
	root, err := RepositoryRoot()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(root, "bin", "drover")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	return "", fmt.Errorf("%s is missing: run make build, or set DROVER_BIN", binary)
}

// BuildProgram builds a package of the root module, such as test/failover/recorder, with
// further flags of go build.
func BuildProgram(binary, pkg string, flags ...string) error {
	return buildBinary(binary, "cloudnative.tw/drover/"+pkg, nil, flags...)
}

// ReadMachine returns the content of bin/drover-machine, which make build builds.
func ReadMachine() ([]byte, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return nil, err
	}
	return os.ReadFile(filepath.Join(root, "bin", "drover-machine")) // #nosec -- of the checkout
}

// BuildController builds drover-controller, and drover-machine in the same folder, with further flags of go build for both.
func BuildController(binary string, flags ...string) error {
	if err := BuildProgram(binary, "cmd/drover-controller", flags...); err != nil {
		return err
	}
	return buildBinary(filepath.Join(filepath.Dir(binary), "drover-machine"), "cloudnative.tw/drover/cmd/drover-machine", []string{"CGO_ENABLED=0"}, flags...)
}

// BuildStatic is BuildProgram for a statically linked program, such as one for a guest.
func BuildStatic(binary, pkg string) error {
	return buildBinary(binary, "cloudnative.tw/drover/"+pkg, []string{"CGO_ENABLED=0"})
}

// BuildMachine builds drover-machine, a static program as make build makes it.
func BuildMachine(binary string) error { return BuildStatic(binary, "cmd/drover-machine") }

// buildBinary builds a package with further environment variables. It builds in the folder that
// hack/cache.sh prints, where go links again only what has changed, and copies the program from
// there. Of several concurrent callers one builds and the others wait.
func buildBinary(binary, pkg string, env []string, flags ...string) error {
	root, err := RepositoryRoot()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildTimeout)
	defer cancel()
	cacheDir, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "cache.sh")).Output()
	if err != nil {
		return fmt.Errorf("hack/cache.sh: %w", err)
	}
	sum := sha256.Sum256(fmt.Appendln(nil, pkg, env, flags))
	cached := filepath.Join(strings.TrimSpace(string(cacheDir)), "programs", hex.EncodeToString(sum[:6]))
	unlock, err := filelock.Lock(cached + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", cached}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	content, err := os.ReadFile(cached) // #nosec -- just built
	if err != nil {
		return err
	}
	return os.WriteFile(binary, content, 0o755) // #nosec -- a program
}

// RepositoryRoot returns the folder above the working directory that contains standalone/:
// tests run in their package's folder.
func RepositoryRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "standalone", "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("not inside a checkout of Drover: set DROVER_BIN")
		}
		dir = up
	}
}
