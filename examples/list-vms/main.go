// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command list-vms shows how a Go program uses Drover's generated client: an
// informer keeps a cache of the VirtualMachines, a lister reads it, and with
// --watch changes are printed as they come.
//
//	go run ./examples/list-vms --kubeconfig DIR/kubeconfig --watch
//
// Start with run in list.go, which is all that your program needs.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/client/clientset/versioned"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file`; without it $KUBECONFIG, ~/.kube/config or the pod's own account")
	opts := options{}
	flag.StringVar(&opts.namespace, "namespace", "", "only the VMs of this `namespace`")
	flag.BoolVar(&opts.watch, "watch", false, "print changes as they come, until interrupted")
	flag.DurationVar(&opts.syncTimeout, "sync-timeout", 30*time.Second, "how long the first list may take")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := connectAndRun(ctx, *kubeconfig, opts)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "list-vms:", err)
		os.Exit(1)
	}
}

func connectAndRun(ctx context.Context, kubeconfig string, opts options) error {
	client, err := newClientFor(kubeconfig)
	if err != nil {
		return err
	}
	return listVMs(ctx, client, opts, os.Stdout)
}

// newClientFor finds the cluster as kubectl does. It sets no timeout for requests,
// since that would end watches too.
func newClientFor(kubeconfig string) (versioned.Interface, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w", err)
	}
	config.UserAgent = "drover-list-vms"
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}
