// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// Labels of a container. All are set on every one, so that labels of the image
// cannot take their place.
const (
	LabelUID       = "cloudnative.tw/uid"
	LabelNamespace = "cloudnative.tw/namespace"
	LabelName      = "cloudnative.tw/name"
	LabelCluster   = "cloudnative.tw/cluster"
	LabelEpoch     = "cloudnative.tw/epoch"
	// LabelImage, LabelPorts and LabelRootDisk record what was requested at
	// creation, to detect later whether the spec has changed.
	LabelImage    = "cloudnative.tw/image"
	LabelPorts    = "cloudnative.tw/ports"
	LabelRootDisk = "cloudnative.tw/root-disk"
)

// RetainedSuffix ends the name of a released container. Docker cannot change a
// label, and a rename is atomic.
const RetainedSuffix = ".retained"

func labels(spec driver.ServerSpec, cluster, image string) map[string]string {
	return map[string]string{
		LabelUID:       string(spec.UID),
		LabelNamespace: spec.Namespace,
		LabelName:      spec.Name,
		LabelCluster:   cluster,
		LabelEpoch:     strconv.FormatUint(spec.Epoch, 10),
		LabelImage:     image,
		LabelPorts:     portsText(spec.Ports),
		LabelRootDisk:  strconv.FormatInt(spec.RootDiskBytes, 10),
	}
}

// containerName is for people. Its uniqueness matters only against a second leader
// that creates the same server at the same time.
func containerName(spec driver.ServerSpec) string {
	uid := string(spec.UID)
	return namePart(spec.Name, 63) + "." + namePart(spec.Namespace, 63) + "." + namePart(uid, 8)
}

var notInNames = regexp.MustCompile(`[^a-zA-Z0-9_.-]`)

// namePart makes s valid in a container name. The API's own rules leave little to
// replace.
func namePart(s string, limit int) string {
	s = notInNames.ReplaceAllString(s, "-")
	if s == "" || strings.ContainsRune("_.-", rune(s[0])) {
		s = "x" + s
	}
	return s[:min(len(s), limit)]
}

var goodHostname = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?$`)

// hostname is the VM's name, as for a Pod; empty lets Docker choose.
func hostname(name string) string {
	if goodHostname.MatchString(name) {
		return name
	}
	return ""
}

func isRetained(name string) bool { return strings.HasSuffix(name, RetainedSuffix) }

func shortID(id string) string { return id[:min(len(id), 12)] }

// portsText writes ports in a fixed order, so that texts can be compared. A port's
// name is used only by Drover and is left out.
func portsText(ports []driver.Port) string {
	texts := make([]string, 0, len(ports))
	for _, p := range ports {
		text := fmt.Sprintf("%d/%s:%d", p.Port, protocol(p), p.HostPort)
		if p.HostIP != "" { // containers of older versions have none
			text += "@" + p.HostIP
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, ",")
}

func protocol(p driver.Port) string {
	if p.Protocol == "" {
		return "tcp"
	}
	return strings.ToLower(p.Protocol)
}

func uidFilter(uid types.UID) string { return LabelUID + "=" + string(uid) }
