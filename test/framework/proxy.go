// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/test/assert"
)

// DockerProxy forwards to a Docker engine and can be disconnected, as if the engine was
// stopped.
type DockerProxy struct{ *relay }

// NewDockerProxy opens a connection to the engine that DOCKER_HOST names.
func NewDockerProxy(t testing.TB) *DockerProxy {
	t.Helper()
	p := OpenDockerProxy(filepath.Join(ShortTempDir(t), "docker.sock"), DockerClient(t).DaemonHost(), t.Errorf)
	t.Cleanup(p.Disconnect)
	return p
}

// OpenDockerProxy opens a socket in front of an engine. The caller must Disconnect it.
func OpenDockerProxy(socket, host string, errorf func(format string, args ...any)) *DockerProxy {
	network, engine, _ := strings.Cut(host, "://")
	return &DockerProxy{openRelay(errorf, address{"unix", socket}, address{network, engine})}
}

// Env makes a program use the proxy.
func (p *DockerProxy) Env() []string { return []string{"DOCKER_HOST=unix://" + p.local.String()} }

// address is a net.Addr that is known before a listener uses it.
type address struct{ network, name string }

// Network is "unix" or "tcp".
func (a address) Network() string { return a.network }

func (a address) String() string { return a.name }

// APIProxy forwards to the API server of a cluster, for one of its clients. It can
// be disconnected, drop all traffic, or delay replies.
type APIProxy struct {
	*relay
	// Kubeconfig is the file that makes a program use the proxy.
	Kubeconfig string
}

// proxyHost is an address that programs do not connect from, so that a port that is
// free while the proxy is disconnected stays free.
const proxyHost = "127.0.0.2:0"

// NewAPIProxy opens a connection to the cluster's API server.
func (c *Cluster) NewAPIProxy(t testing.TB) *APIProxy {
	t.Helper()
	server, err := url.Parse(c.Config.Host)
	assert.NoError(t, err)
	p := &APIProxy{newRelay(t, address{"tcp", proxyHost}, address{"tcp", server.Host}), filepath.Join(t.TempDir(), "kubeconfig")}
	assert.NoError(t, c.writeKubeconfig(p.Kubeconfig, p.local, server.Hostname()))
	return p
}

// writeKubeconfig writes the admin's kubeconfig for another address of the
// server, whose certificate holds for name.
func (c *Cluster) writeKubeconfig(path string, address net.Addr, name string) error {
	config, err := clientcmd.LoadFromFile(c.Kubeconfig)
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.TLSServerName = fmt.Sprintf("https://%s", address), name
	}
	return clientcmd.WriteToFile(*config, path)
}

// ServiceProxy forwards to the first of several replicas that answers, as a Service does to
// one that is ready.
type ServiceProxy struct{ *relay }

// NewServiceProxy opens an address in front of those of replicas.
func NewServiceProxy(t testing.TB, replicas ...string) *ServiceProxy {
	t.Helper()
	remotes := make([]net.Addr, len(replicas))
	for i, replica := range replicas {
		remotes[i] = address{"tcp", replica}
	}
	return &ServiceProxy{newRelay(t, address{"tcp", "127.0.0.1:0"}, remotes...)}
}

// Address is where the replicas are reached.
func (p *ServiceProxy) Address() string { return p.local.String() }
