// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package streams tests consoles, logs, commands and ports as clients use them, through both
// servers of streams: the kube-apiserver of `drover up`, and the controller's address in
// a cluster. The servers of VMs are simulated.
//
// Start with users_test.go, which tests the rights of users; hostile_test.go has hostile
// clients, and life_test.go tests how streams end.
package streams

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// Both servers of streams, by name.
var (
	// standalone is `drover up`.
	standalone *server
	// endpoint is a controller in this process, with an address for streams.
	endpoint *server
)

// servers returns both servers by name.
func servers() map[string]*server {
	return map[string]*server{"drover up": standalone, "controller": endpoint}
}

// server serves streams.
type server struct {
	*testenv.Environment
	// url is the address of the streams, and ca its CA; nil means the API server's.
	url string
	ca  []byte
	// restart restarts the controller in this process.
	restart func() error
}

func TestMain(m *testing.M) { os.Exit(testenv.RunTests(m, startServers)) }

func startServers() (func() error, error) {
	stopStandalone, err := startStandalone()
	if err != nil {
		return nil, err
	}
	stopEndpoint, err := startEndpoint()
	if err != nil {
		return nil, errors.Join(err, stopStandalone())
	}
	return func() error { return errors.Join(stopEndpoint(), stopStandalone()) }, nil
}

func startStandalone() (func() error, error) {
	env, err := testenv.NewWith(framework.ClusterOptions{WithController: true, Args: []string{
		"--vm-driver=fake", "--streams-per-vm=200", "--pprof-bind-address=127.0.0.1:0",
	}})
	if err != nil {
		return nil, err
	}
	standalone = &server{Environment: env, url: env.Config.Host}
	return env.Close, nil
}

func startEndpoint() (func() error, error) {
	env, err := testenv.New()
	if err != nil {
		return nil, err
	}
	endpoint = &server{Environment: env}
	stop, err := endpoint.startController()
	if err != nil {
		return nil, errors.Join(err, env.Close())
	}
	return func() error { return errors.Join(stop(), env.Close()) }, nil
}

// startController starts the controller that serves streams.
func (s *server) startController() (stop func() error, err error) {
	address, err := framework.FindFreeAddress(context.Background())
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(s.DataDir, "streams")
	if s.ca, err = framework.WriteServerCertificate(dir); err != nil {
		return nil, err
	}
	s.url = "https://" + address
	start := func() (*testenv.LocalController, error) {
		return s.StartController("--vm-driver=fake", "--streams-per-vm=200",
			"--streams-address="+address, "--streams-cert-dir="+dir, "--streams-url="+s.url)
	}
	controller, err := start()
	s.restart = func() error {
		if err := controller.Stop(); err != nil {
			return err
		}
		var err error
		controller, err = start()
		return err
	}
	if err == nil {
		err = assert.Poll(context.Background(), "the endpoint listens", func() error {
			conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", address)
			if err == nil {
				err = conn.Close()
			}
			return err
		})
	}
	return func() error { return controller.Stop() }, err
}

// configOf returns the configuration with which a user of the API server connects to the server of streams.
func (s *server) configOf(user *rest.Config) *rest.Config {
	user = rest.CopyConfig(user)
	user.Host = s.url
	if s.ca != nil {
		user.CAFile, user.CAData = "", s.ca
	}
	return user
}

// createVM creates a VM in a new namespace, and waits until its server runs.
func (s *server) createVM(t *testing.T) (namespace string) {
	t.Helper()
	namespace = s.CreateNamespace(t)
	vm := framework.NewVM("vm").Namespace(namespace).Driver("fake").Port("echo", 7, 0)
	s.CreateActiveVM(t, vm)
	return namespace
}

func (s *server) pid() int {
	if s == standalone {
		return s.PID()
	}
	return os.Getpid()
}

func (s *server) String() string { return fmt.Sprintf("%s (process %d)", s.url, s.pid()) }
