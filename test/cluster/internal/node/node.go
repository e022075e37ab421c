// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package node runs a node of a cluster: containerd, the kubelet and kube-proxy, in the
// namespaces of a separate process tree.
package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster/internal/control"
	"cloudnative.tw/drover/test/cluster/internal/plan"
	"cloudnative.tw/drover/test/cluster/internal/processes"
)

// Programs of a node.
const (
	containerd = "containerd"
	kubelet    = "kubelet"
	kubeProxy  = "kube-proxy"
)

// Settings of a node.
type Settings struct {
	Plan  plan.Plan `json:"plan"`
	Index int       `json:"index"`
}

type node struct {
	plan  plan.Plan
	index int
	name  string
	group processes.Group
}

// Init is the node's first process: it starts the process that runs the node, and reaps
// orphaned processes.
func Init() error {
	if os.Getpid() != 1 {
		return errors.New("runs only as the first process of its namespaces")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	child, err := syscall.ForkExec(self, append([]string{self, "node"}, os.Args[2:]...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
	if err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		if err != nil && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if pid == child {
			return fmt.Errorf("the process of the node has ended: %v", status)
		}
	}
}

// Run reads a node's settings from input and runs the node until it is killed.
func Run(ctx context.Context, input io.Reader) error {
	var settings Settings
	if err := json.NewDecoder(input).Decode(&settings); err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	n := &node{plan: settings.Plan, index: settings.Index, name: plan.NodeName(settings.Index)}
	if err := n.prepare(); err != nil {
		return err
	}
	outcome := control.NewOutcome()
	mux := http.NewServeMux()
	outcome.Serve(mux)
	n.group.Serve(mux)
	mux.HandleFunc("POST /import", control.Handler(func(r *http.Request) error {
		return n.importImage(r.Context(), r.URL.Query().Get("archive"))
	}))
	if err := control.Serve(ctx, n.plan.NodeSocket(n.index), mux); err != nil {
		return err
	}
	err := n.start(ctx)
	log.Printf("%s has started: %v", n.name, err)
	outcome.Set(err)
	select {}
}

// prepare sets up the mounts, the network and the files that the programs expect.
func (n *node) prepare() error {
	if err := n.writeFiles(); err != nil {
		return err
	}
	if err := errors.Join(n.mountAll(), n.configureNetwork(), syscall.Sethostname([]byte(n.name))); err != nil {
		return err
	}
	n.group.Add(containerd, n.plan.Program(containerd), n.path("containerd.log"), "--config="+n.path("containerd.toml"))
	n.group.Add(kubelet, n.plan.Program(kubelet), n.path("kubelet.log"),
		"--config="+n.path("kubelet.yaml"), "--kubeconfig="+n.path("kubelet.kubeconfig"),
		"--hostname-override="+n.name, "--node-ip="+n.plan.NodeIP(n.index))
	n.group.Add(kubeProxy, n.plan.Program(kubeProxy), n.path("kube-proxy.log"), "--config="+n.path("kube-proxy.yaml"))
	// containerd looks for its shim and for runc, kube-proxy for nft.
	return os.Setenv("PATH", n.plan.Binaries+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
}

// start starts the programs of a node. It starts the kubelet only after the first start of
// the API, because the kubelet would wait long before a second try.
func (n *node) start(ctx context.Context) error {
	if err := n.group.Start(containerd); err != nil {
		return err
	}
	if err := n.waitForContainerd(ctx); err != nil {
		return err
	}
	for _, archive := range n.plan.Images {
		if err := n.importImage(ctx, archive); err != nil {
			return err
		}
	}
	err := assert.Poll(ctx, "kube-apiserver was ready", func() error {
		_, err := os.Stat(n.plan.StartedFile())
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(n.group.Start(kubelet), n.group.Start(kubeProxy))
}

func (n *node) waitForContainerd(ctx context.Context) error {
	ctx, cancel := control.WithEnd(ctx, n.group.Ended(containerd))
	defer cancel()
	return assert.Poll(ctx, "containerd answers; its log is "+n.path("containerd.log"), func() error {
		out, err := n.ctr(ctx, "version")
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	})
}

// importImage imports the images of an archive for the kubelet.
func (n *node) importImage(ctx context.Context, archive string) error {
	if !filepath.IsAbs(archive) {
		return fmt.Errorf("archive %q is not an absolute path", archive)
	}
	if out, err := n.ctr(ctx, "--namespace=k8s.io", "images", "import", archive); err != nil {
		return fmt.Errorf("import %s: %w: %s", archive, err, out)
	}
	return nil
}

func (n *node) ctr(ctx context.Context, args ...string) ([]byte, error) {
	return exec.CommandContext(ctx, n.plan.Program("ctr"), args...).CombinedOutput()
}
