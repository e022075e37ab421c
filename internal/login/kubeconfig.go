// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"cloudnative.tw/drover/internal/atomicfile"
)

// execVersion is the version of the API between clients of Kubernetes and drover login.
const execVersion = "client.authentication.k8s.io/v1"

// entryName is the name of the cluster, the user and the context.
const entryName = "drover"

// maxKubeconfig bounds the kubeconfig of the service.
const maxKubeconfig = 64 << 10

// kubeconfig has the fields of a kubeconfig that the service uses. It is written as JSON, which is YAML, too.
type kubeconfig struct {
	APIVersion     string         `json:"apiVersion"`
	Kind           string         `json:"kind"`
	Clusters       []namedCluster `json:"clusters"`
	Users          []namedUser    `json:"users"`
	Contexts       []namedContext `json:"contexts"`
	CurrentContext string         `json:"current-context"`
}

type namedCluster struct {
	Name    string     `json:"name"`
	Cluster clusterRef `json:"cluster"`
}

type clusterRef struct {
	Server string `json:"server"`
	CAData []byte `json:"certificate-authority-data"`
}

type namedUser struct {
	Name string  `json:"name"`
	User userRef `json:"user"`
}

type userRef struct {
	Exec execRef `json:"exec"`
}

type namedContext struct {
	Name    string     `json:"name"`
	Context contextRef `json:"context"`
}

type contextRef struct {
	Cluster   string `json:"cluster"`
	User      string `json:"user"`
	Namespace string `json:"namespace,omitempty"`
}

type execRef struct {
	APIVersion      string   `json:"apiVersion"`
	Command         string   `json:"command"`
	Args            []string `json:"args"`
	Env             []envVar `json:"env"`
	InteractiveMode string   `json:"interactiveMode"`
}

type envVar struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// FormatKubeconfig returns the kubeconfig for all users of the host: the API's address and authority, and the command
// with which clients log in at the service of a folder.
func FormatKubeconfig(dir, server string, authority []byte, command string) ([]byte, error) {
	return json.MarshalIndent(kubeconfig{
		APIVersion: "v1", Kind: "Config", CurrentContext: entryName,
		Clusters: []namedCluster{{entryName, clusterRef{server, authority}}},
		Users: []namedUser{{entryName, userRef{execRef{
			APIVersion: execVersion, Command: command, Args: []string{"login"}, InteractiveMode: "Never",
			Env: []envVar{{dirEnv, dir}},
		}}}},
		Contexts: []namedContext{{entryName, contextRef{Cluster: entryName, User: entryName}}},
	}, "", "  ")
}

// IsOffered reports whether the host has a service at which the user of this process may try to log in. Root has the
// kubeconfig of the data dir.
func (c *Client) IsOffered() bool {
	_, err := os.Stat(KubeconfigPath(c.Dir))
	return err == nil && os.Geteuid() != 0
}

// IsDefault reports whether commands of a user use the service, since the user did not name another cluster and lacks a data dir.
func (c *Client) IsDefault(getenv func(string) string) bool {
	_, err := os.Stat(filepath.Join(DataDir(getenv, os.Getuid()), "kubeconfig"))
	return getenv("KUBECONFIG") == "" && getenv("DROVER_DATA_DIR") == "" && errors.Is(err, fs.ErrNotExist) && c.IsOffered()
}

// PersonalKubeconfig returns the path of the service's kubeconfig with the namespace of the user in it. The path leads to a
// file in memory, which ends with this process and its children. This process connects to the API without a proxy.
func (c *Client) PersonalKubeconfig() (string, error) {
	config, err := c.readKubeconfig()
	if err != nil {
		return "", err
	}
	credentials, err := c.Obtain()
	if err != nil {
		return "", err
	}
	config.Contexts[0].Context.Namespace = credentials.Namespace()
	text, err := json.Marshal(config)
	if err == nil {
		err = BypassProxy(config.Clusters[0].Cluster.Server)
	}
	if err != nil {
		return "", err
	}
	return KeepInMemory(text)
}

// readKubeconfig reads the kubeconfig of the service. It names a program, so it must be root's.
func (c *Client) readKubeconfig() (*kubeconfig, error) {
	path := KubeconfigPath(c.Dir)
	text, info, err := atomicfile.Read(path, maxKubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no Drover service lets users of this host log in: %w", err)
	}
	if err != nil {
		return nil, err
	}
	if !isOwned(info, 0, 0o022) {
		return nil, fmt.Errorf("%s is not used: only root may be able to write it", path)
	}
	config := &kubeconfig{}
	if err := json.Unmarshal(text, config); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(config.Clusters) != 1 || len(config.Contexts) != 1 {
		return nil, fmt.Errorf("%s must have one cluster and one context", path)
	}
	return config, nil
}

// authority returns the CA of the API, or nil if the kubeconfig lacks a valid one.
func (k *kubeconfig) authority() *x509.Certificate {
	block, _ := pem.Decode(k.Clusters[0].Cluster.CAData)
	if block == nil {
		return nil
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil
	}
	return ca
}

// isOwned reports whether a file belongs to a user, and others lack the permissions.
func isOwned(info fs.FileInfo, uid int, others fs.FileMode) bool {
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == uid && info.Mode().Perm()&others == 0
}
