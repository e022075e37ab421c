// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"embed"
	"os"
	"path/filepath"
	"strconv"
	"text/template"

	"cloudnative.tw/drover/test/cluster/internal/plan"
)

//go:embed files
var files embed.FS

var templates = template.Must(template.ParseFS(files, "files/*"))

// values of the templates.
type values struct {
	Name, NodeIP, PodCIDR, Dir, PKI, Group, PauseImage string
}

// writeFiles writes the settings of the node's programs, and files that are mounted over
// files of the host.
func (n *node) writeFiles() error {
	v := values{
		Name: n.name, NodeIP: n.plan.NodeIP(n.index), PodCIDR: n.plan.PodCIDR(n.index),
		Dir: n.path(), PKI: n.plan.Path("pki"), Group: n.plan.NodeGroup(n.index), PauseImage: plan.ProbeImage,
	}
	for _, dir := range []string{"cni", "manifests", "lib", "log", "covers"} {
		if err := os.MkdirAll(n.path(dir), 0o755); err != nil {
			return err
		}
	}
	for number := range plan.Volumes {
		if err := os.MkdirAll(n.path("lib", "volumes", strconv.Itoa(number)), 0o755); err != nil {
			return err
		}
	}
	for name, path := range map[string]string{
		"kubelet.yaml": "kubelet.yaml", "kube-proxy.yaml": "kube-proxy.yaml",
		"containerd.toml": "containerd.toml", "cni.conflist": "cni/10-cluster.conflist",
	} {
		if err := writeTemplate(n.path(path), name, v); err != nil {
			return err
		}
	}
	return os.WriteFile(n.path("resolv.conf"), nil, 0o644) // there is no DNS
}

func writeTemplate(path, name string, v values) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return templates.ExecuteTemplate(file, name, v)
}

func (n *node) path(elements ...string) string {
	return filepath.Join(append([]string{n.plan.NodePath(n.index)}, elements...)...)
}
