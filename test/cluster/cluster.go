// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster runs a Kubernetes cluster of several nodes on this host. Each node is a
// process tree with separate namespaces, containerd and kubelet, so that tests can switch a
// node off, cut its link or end one of its programs.
//
// Tests call Start. A cluster is removed completely by Close, or after the process that
// started it has been killed: the kernel ends all its processes, which are in one PID
// namespace, and then another process removes the rest, such as control groups.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/test/cluster/internal/control"
	"cloudnative.tw/drover/test/cluster/internal/failure"
	"cloudnative.tw/drover/test/cluster/internal/plan"
	"cloudnative.tw/drover/test/framework"
)

// startTimeout is how long a cluster may take to start on a slow and busy host.
const startTimeout = 5 * time.Minute

// ProbeImage is an image that every node has. Its program /probe serves HTTP and requests
// URLs: see cmd/probe.
const ProbeImage = plan.ProbeImage

// Options of a cluster.
type Options struct {
	// Nodes is the number of nodes, from 1 to 9; 0 means 3.
	Nodes int
	// Dir gets the files of the cluster. It must not exist, and is removed with the
	// cluster. Empty means a temporary one.
	Dir string
	// Images are archives, as docker save writes them, that all nodes import.
	Images []string
	// Simulated is for clusters with many more nodes, which a program simulates: nodes may be silent
	// for longer, and the scheduler is without a rate limit.
	Simulated bool
	// Detached lets the cluster run until Close, even if this process ends before.
	Detached bool
	// Binaries is the folder that hack/cluster-binaries.sh printed; empty means to run it.
	Binaries string
}

// Cluster is a running cluster.
type Cluster struct {
	// Config connects as the cluster's administrator.
	Config *rest.Config
	// Client is a client for Config.
	Client kubernetes.Interface
	// Kubeconfig is the path of a kubeconfig for the same user, for programs.
	Kubeconfig string
	// Dir has the cluster's files.
	Dir string

	plan  plan.Plan
	rig   *rigProcess // nil if another process started it
	close sync.Once
	err   error // the result of Close
}

// New starts a cluster that the caller must Close. When it returns, all nodes are Ready
// and pods can be created.
func New(ctx context.Context, opts Options) (*Cluster, error) {
	p, err := newPlan(ctx, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	c := &Cluster{plan: p, Dir: p.Dir, Kubeconfig: p.Kubeconfig()}
	if c.rig, err = startRig(&c.plan); err != nil {
		return nil, errors.Join(err, os.RemoveAll(p.Dir))
	}
	err = c.waitUntilStarted(ctx)
	if err == nil && opts.Detached {
		err = c.rig.detach()
	}
	if err != nil {
		printed := c.Logs() // before Close removes them
		return nil, failure.OfStart(err, c.Close(), printed)
	}
	return c, nil
}

// Open returns the running cluster whose files are in a folder.
func Open(ctx context.Context, dir string) (*Cluster, error) {
	p, err := plan.Read(dir)
	if err != nil {
		return nil, err
	}
	c := &Cluster{plan: p, Dir: p.Dir, Kubeconfig: p.Kubeconfig()}
	if err := control.Get(ctx, p.Socket(), "/started"); err != nil {
		return nil, fmt.Errorf("the cluster in %s does not run: %w", dir, err)
	}
	return c, c.connect()
}

func (c *Cluster) waitUntilStarted(ctx context.Context) error {
	if err := control.WaitUntilStarted(ctx, c.plan.Socket(), c.rig.Ended); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if err := c.addStorage(ctx); err != nil {
		return err
	}
	return c.waitUntilUsable(ctx)
}

func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return err
	}
	// Tests should not wait for a limit that protects busy clusters.
	config.QPS = -1
	c.Config = config
	c.Client, err = kubernetes.NewForConfig(config)
	return err
}

// newPlan checks the host, and returns the plan of a cluster after making its folder.
func newPlan(ctx context.Context, opts Options) (plan.Plan, error) {
	if opts.Nodes == 0 {
		opts.Nodes = 3
	}
	p := plan.Plan{Nodes: opts.Nodes, Dir: opts.Dir, Binaries: opts.Binaries, Simulated: opts.Simulated}
	if err := check(p); err != nil {
		return p, err
	}
	if p.Binaries == "" {
		binaries, err := buildBinaries(ctx)
		if err != nil {
			return p, err
		}
		p.Binaries = binaries
	}
	// The name must be unique on this host, because control groups are named after it.
	p.Name = fmt.Sprintf("%s%d-%d", plan.NamePrefix, os.Getpid(), time.Now().UnixNano())
	for _, archive := range opts.Images {
		path, err := filepath.Abs(archive)
		if err != nil {
			return p, err
		}
		p.Images = append(p.Images, path)
	}
	if err := makeDir(&p); err != nil {
		return p, err
	}
	p.Images = append(p.Images, p.Path("probe.tar"))
	// From now on ShutDown can remove the folder if this process is killed.
	if err := p.Write(); err != nil {
		return p, errors.Join(err, os.RemoveAll(p.Dir))
	}
	return p, nil
}

func makeDir(p *plan.Plan) error {
	if p.Dir == "" {
		dir, err := os.MkdirTemp("", "drover-cluster-")
		p.Dir = dir
		return err
	}
	dir, err := filepath.Abs(p.Dir)
	if err != nil {
		return err
	}
	p.Dir = dir
	return os.Mkdir(dir, 0o700)
}

// buildBinaries builds the programs that are out of date, and returns their folder.
func buildBinaries(ctx context.Context) (string, error) {
	root, err := framework.RepositoryRoot()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "cluster-binaries.sh")).Output()
	if err != nil {
		if failed, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w\n%s", err, failed.Stderr)
		}
		return "", fmt.Errorf("build the cluster's programs: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Close ends all nodes and the control plane, and removes everything that they have left. It
// may be called several times.
func (c *Cluster) Close() error {
	c.close.Do(func() {
		if c.rig != nil {
			c.err = c.rig.stop()
			return
		}
		c.err = shutDown(c.plan)
	})
	return c.err
}
