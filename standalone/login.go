// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"cloudnative.tw/drover/standalone/internal/controlplane"
	"cloudnative.tw/drover/standalone/internal/members"
	"cloudnative.tw/drover/standalone/internal/supervisor"
)

// loginStopTimeout allows the answers that are being made.
const loginStopTimeout = 6 * time.Second

// loginComponent returns the component that gives access to users of the host.
func loginComponent(dir string, plane *controlplane.Config) (supervisor.Component, error) {
	command, err := commandOfClients()
	if err != nil {
		return supervisor.Component{}, err
	}
	config := plane.ClientConfig(plane.Keys.Controller())
	config.QPS = -1 // the API server limits requests itself
	// The discovery of kinds at the first use needs an API that runs.
	objects, err := client.New(config, client.Options{Scheme: scheme.Scheme})
	if err != nil {
		return supervisor.Component{}, err
	}
	server := &members.Server{
		Dir: dir, URL: plane.URL(), CABundle: plane.Keys.CABundle(), Command: command,
		Sign: plane.Keys.SignUser, Client: objects, Directory: members.Host{}, Clock: clock.RealClock{},
	}
	return supervisor.Component{Name: "login", Run: server.Run, StopBy: loginStopTimeout}, nil
}

// commandOfClients returns the program that clients run to log in: the path by which this one was started, if it was a
// full path, since a small program may have started this one, and passes its path.
func commandOfClients() (string, error) {
	if filepath.IsAbs(os.Args[0]) {
		return os.Args[0], nil
	}
	return os.Executable()
}
