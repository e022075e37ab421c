// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rig runs a cluster: the control plane, and a process tree for each node. Its
// process is the first one of separate namespaces, so that the kernel ends all others with it.
package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/cluster/internal/cgroups"
	"cloudnative.tw/drover/test/cluster/internal/control"
	"cloudnative.tw/drover/test/cluster/internal/plan"
	"cloudnative.tw/drover/test/cluster/internal/processes"
)

// apiTimeout is how long kube-apiserver may take to be ready.
const apiTimeout = 2 * time.Minute

// rig is a running cluster.
type rig struct {
	plan     plan.Plan
	group    processes.Group
	machines []*machine
	started  *control.Outcome
}

// Run reads a cluster's plan from input and runs the cluster until the end of input. If input
// then has the value true, the cluster is detached: it runs until it is shut down.
func Run(ctx context.Context, input io.Reader) error {
	if os.Getpid() != 1 {
		return errors.New("runs only as the first process of its namespaces")
	}
	r := &rig{started: control.NewOutcome()}
	decoder := json.NewDecoder(input)
	if err := decoder.Decode(&r.plan); err != nil {
		return fmt.Errorf("read the plan: %w", err)
	}
	for i := 1; i <= r.plan.Nodes; i++ {
		r.machines = append(r.machines, &machine{plan: r.plan, index: i})
	}
	if err := r.serve(ctx); err != nil {
		return err
	}
	go func() {
		err := r.start(ctx)
		log.Printf("started: %v", err)
		r.started.Set(err)
	}()
	var detached bool
	if err := decoder.Decode(&detached); err != nil || !detached {
		return err
	}
	select {}
}

func (r *rig) serve(ctx context.Context) error {
	mux := http.NewServeMux()
	r.group.Serve(mux)
	r.started.Serve(mux)
	mux.HandleFunc("POST /shutdown", func(http.ResponseWriter, *http.Request) {
		_ = unix.Kill(-1, unix.SIGKILL) // kill all others before the connection of the request ends with this process
		os.Exit(0)
	})
	mux.HandleFunc("POST /nodes/{index}/{verb}", control.Handler(func(request *http.Request) error {
		i, err := strconv.Atoi(request.PathValue("index"))
		if err != nil || i < 1 || i > len(r.machines) {
			return fmt.Errorf("there is no node %s", request.PathValue("index"))
		}
		return r.machines[i-1].do(ctx, request.PathValue("verb"))
	}))
	return control.Serve(ctx, r.plan.Socket(), mux)
}

func (m *machine) do(ctx context.Context, verb string) error {
	switch verb {
	case "power-off":
		return m.powerOff()
	case "power-on":
		return m.powerOn(ctx)
	case "cut-link":
		return setLink(m.index, false)
	case "restore-link":
		return setLink(m.index, true)
	}
	return fmt.Errorf("there is no verb %s", verb)
}

// start starts the control plane and, at the same time, the nodes, which import images.
func (r *rig) start(ctx context.Context) error {
	err := errors.Join(mountPrivately(), makeNetwork(r.plan), r.writeFiles(), cgroups.Make("/"+r.plan.Name))
	if err != nil {
		return err
	}
	addControlPlane(r.plan, &r.group)
	nodes := make(chan error, 1)
	go func() { nodes <- r.powerOnAll(ctx) }()
	if err := errors.Join(r.group.Start(etcd), r.group.Start(apiServer)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	if err := waitForAPI(ctx, r.plan, &r.group); err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(r.plan.StartedFile(), nil, 0o600),
		r.group.Start(controllerManager), r.group.Start(scheduler),
		<-nodes,
	)
}

func (r *rig) powerOnAll(ctx context.Context) error {
	errs := make([]error, len(r.machines))
	var wait sync.WaitGroup
	for i, m := range r.machines {
		wait.Go(func() { errs[i] = m.powerOn(ctx) })
	}
	wait.Wait()
	return errors.Join(errs...)
}

// mountPrivately makes mounts of the cluster invisible to the host, and mounts a /proc with
// the cluster's processes.
func mountPrivately() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

func (r *rig) writeFiles() error {
	for i := 1; i <= r.plan.Nodes; i++ {
		if err := os.MkdirAll(r.plan.NodePath(i), 0o700); err != nil {
			return err
		}
	}
	if err := errors.Join(os.MkdirAll(r.plan.Path("pki"), 0o700), os.MkdirAll(r.plan.Path("logs"), 0o700)); err != nil {
		return err
	}
	return writeCredentials(r.plan)
}
