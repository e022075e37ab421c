// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cloudnative.tw/drover/test/assert"
)

func TestColumns(t *testing.T) {
	var got []string
	for _, column := range definition(t).Spec.Versions[0].AdditionalPrinterColumns {
		got = append(got, fmt.Sprintf("%s %s %d", column.Name, column.Type, column.Priority))
	}
	want := []string{
		"Status string 0", "CPU number 0", "Memory number 0", "Age date 0",
		"Ready string 1", "Driver string 1", "Address string 1", "ID string 1", "Reason string 1",
	}
	assert.True(t, slices.Equal(got, want), "columns are\n%q, want\n%q", got, want)
}

func TestDefaults(t *testing.T) {
	cases := map[string]struct {
		manifest string
		path     []string
		want     any
	}{
		"status of a manifest":   {withStatus(`{phase: Active}`), []string{"status"}, map[string]any{"observedGeneration": int64(-1)}},
		"the smallest spec":      {vm(minimal), []string{"spec"}, minimalDefaulted},
		"a given action is kept": {vm(`{action: paused, resource: {cpu: 1, memory: 1G}}`), []string{"spec", "action"}, "paused"},
		"image": {vm(`{resource: {cpu: 1, memory: 1G}, image: {source: nginx}}`), []string{"spec", "image"}, map[string]any{
			"source": "nginx", "pullPolicy": "IfNotPresent",
		}},
		"ports": {vm(`{resource: {cpu: 1, memory: 1G}, ports: [{name: http, port: 80}]}`), []string{"spec", "ports"}, []any{
			map[string]any{"name": "http", "port": int64(80), "protocol": "TCP"},
		}},
		"probe": {vm(`{resource: {cpu: 1, memory: 1G}, readinessProbe: {tcpSocket: {port: 80}}}`), []string{"spec", "readinessProbe"}, map[string]any{
			"tcpSocket": map[string]any{"port": int64(80)}, "periodSeconds": int64(2), "timeoutSeconds": int64(1),
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			object, err := connect(t).create(t, tc.manifest, metav1.CreateOptions{DryRun: dryRun})
			assert.NoError(t, err)
			got, found, err := unstructured.NestedFieldNoCopy(object.Object, tc.path...)
			assert.Require(t, err == nil && found, "%v: found %t, error %v", tc.path, found, err)
			assert.True(t, equality.Semantic.DeepEqual(got, tc.want), "%v is\n%#v, want\n%#v", tc.path, got, tc.want)
		})
	}
}

const minimal = `{resource: {cpu: 1, memory: 1G}}`

var minimalDefaulted = map[string]any{
	"action": "active", "restartPolicy": "Always", "deletionPolicy": "Delete",
	"shutdownGracePeriodSeconds": int64(30),
	"resource":                   map[string]any{"cpu": int64(1), "memory": "1G"},
}

func TestCreate(t *testing.T) {
	s := connect(t)
	for name, tc := range createCases() {
		t.Run(name, func(t *testing.T) { s.checkCreate(t, tc.manifest, tc.want) })
	}
}

type createCase struct {
	manifest string
	want     []string
}

func createCases() map[string]createCase {
	cases := map[string]createCase{
		"a name of 63 characters": {named(strings.Repeat("a", 63)), nil},
		"a name of 64 characters": {named(strings.Repeat("a", 64)), []string{`metadata.name: Too long: may not be more than 63 bytes`}},
		"the largest of all":      {vm(largest()), nil},
	}
	for name, tc := range resourceCases {
		cases["resource: "+name] = createCase{vm("{resource: {" + tc.manifest + "}}"), tc.want}
	}
	for name, tc := range specCases {
		cases["spec: "+name] = createCase{vm("{resource: {cpu: 1, memory: 1G}, " + tc.manifest + "}"), tc.want}
	}
	cases["spec: no resource"] = createCase{vm(`{}`), []string{`spec.resource: Required value`}}
	return cases
}

var resourceCases = map[string]createCase{
	"as in the guide":      {`cpu: 2, memory: 4G, rootDisk: 40G`, nil},
	"no rootDisk":          {`cpu: 2, memory: 4G`, nil},
	"half a CPU":           {`cpu: 500m, memory: 4G`, nil},
	"a fraction in quotes": {`cpu: "0.5", memory: 4G`, nil},
	"bytes as a number":    {`cpu: 2, memory: 4000000000`, nil},
	"the least":            {`cpu: 10m, memory: 6Mi, rootDisk: 1Mi`, nil},
	"the most":             {`cpu: 4096, memory: 64Ti, rootDisk: 1Pi`, nil},

	"cpu 0":         {`cpu: 0, memory: 4G`, []string{cpuIs("0")}},
	"cpu -1":        {`cpu: -1, memory: 4G`, []string{cpuIs("-1")}},
	"cpu abc":       {`cpu: abc, memory: 4G`, []string{cpuIs("abc")}},
	"cpu empty":     {`cpu: "", memory: 4G`, []string{cpuIs("")}},
	"cpu 9m":        {`cpu: 9m, memory: 4G`, []string{cpuIs("9m")}},
	"cpu 4097":      {`cpu: 4097, memory: 4G`, []string{cpuIs("4097")}},
	"cpu too long":  {`cpu: "1.` + strings.Repeat("0", 31) + `", memory: 4G`, []string{`spec.resource.cpu: Too long: may not be more than 32 bytes`}},
	"cpu null":      {`cpu: null, memory: 4G`, []string{`spec.resource: Required value: cpu is required, for example cpu: 2 or cpu: 500m`}},
	"cpu absent":    {`memory: 4G`, []string{`spec.resource: Required value: cpu is required, for example cpu: 2 or cpu: 500m`}},
	"memory absent": {`cpu: 2`, []string{`spec.resource: Required value: memory is required, for example memory: 4G or memory: 512Mi`}},
	"memory 1":      {`cpu: 2, memory: 1`, []string{memoryIs("1")}},
	"memory -4G":    {`cpu: 2, memory: -4G`, []string{memoryIs("-4G")}},
	"memory 4GB":    {`cpu: 2, memory: 4GB`, []string{memoryIs("4GB")}},
	"memory 65Ti":   {`cpu: 2, memory: 65Ti`, []string{memoryIs("65Ti")}},
	"rootDisk 0":    {`cpu: 2, memory: 4G, rootDisk: 0`, []string{rootDiskIs("0")}},
	"rootDisk 2Pi":  {`cpu: 2, memory: 4G, rootDisk: 2Pi`, []string{rootDiskIs("2Pi")}},
	"several":       {`cpu: 0, memory: 1, rootDisk: big`, []string{cpuIs("0"), memoryIs("1"), rootDiskIs("big")}},
	"key gpu":       {`cpu: 2, memory: 4G, rootDisk: 40G, gpu: 1`, []string{`spec.resource: Invalid value: unsupported resource gpu: allowed are cpu, memory and rootDisk`}},
	"key CPU": {`CPU: 2, memory: 4G`, []string{
		`spec.resource: Invalid value: unsupported resource CPU: allowed are cpu, memory and rootDisk`,
		`spec.resource: Required value: cpu is required, for example cpu: 2 or cpu: 500m`,
	}},
	"a fraction without quotes": {`cpu: 1.5, memory: 4G`, []string{
		unquotedFraction,
		`spec.resource.cpu: Invalid value: "number": spec.resource.cpu in body must be of type integer: "number"`,
	}},
}

const unquotedFraction = `spec.resource.cpu: Invalid value: "number": spec.resource.cpu in body must be of type integer,string: "number"`

// TestFractionsInDocs checks that what the API server says of a fraction without quotes is found in the docs, and
// that no manifest in them has one.
func TestFractionsInDocs(t *testing.T) {
	t.Parallel()
	unquoted := regexp.MustCompile(`(?m)^ *-? *(cpu|memory|rootDisk|size): *[0-9]*\.[0-9]+ *(#.*)?$`)
	var all []string
	for _, pattern := range []string{"README.md", "docs/*.md", "docs/adr/*.md", "examples/*.yaml", "examples/*/*.yaml", "examples/*.md"} {
		found, err := filepath.Glob("../../" + pattern)
		assert.NoError(t, err)
		all = append(all, found...)
	}
	for _, path := range all {
		text, err := os.ReadFile(path)
		assert.NoError(t, err)
		line := unquoted.Find(text)
		assert.True(t, line == nil, "%s has the line %q, which the API server refuses", path, line)
		assert.True(t, filepath.Base(path) != "troubleshooting.md" || strings.Contains(string(text), unquotedFraction),
			"%s does not have %s", path, unquotedFraction)
	}
}

func cpuIs(value string) string {
	return `spec.resource: Invalid value: cpu is ` + value + `: it must be a quantity from 10m to 4096, for example 2 or 500m`
}

func memoryIs(value string) string {
	return `spec.resource: Invalid value: memory is ` + value + `: it must be a quantity from 6Mi to 64Ti, for example 4G or 512Mi`
}

func mountPathIs(value string) string {
	return fmt.Sprintf(`spec.files[0].mountPath: Invalid value: %q: mountPath must be an absolute path other than /, without .. or . in it and without a slash at its end, for example /etc/tls`, value)
}

func mountPathHides(value string) string {
	return fmt.Sprintf(`spec.files[0].mountPath: Invalid value: %q: mountPath must not be /etc, and not be /proc, /sys or /dev or be inside one of them`, value)
}

// fileAt is a file with a path.
func fileAt(path string) string {
	return `files: [{mountPath: /a, secret: {secretName: a, items: [{key: k, path: ` + path + `}]}}]`
}

func filePathIs(value string) string {
	const field = "spec.files[0].secret.items[0].path"
	return fmt.Sprintf(`%s: Invalid value: %q: %s in body should match '%s'`, field, value, field, filePathPattern)
}

const filesHide = `spec.files: Invalid value: the mountPath of a volume must not be one of files, and not be inside it: the files would hide the volume`

const filePathPattern = `^([^/.\p{C}\p{Zl}\p{Zp}]|[.][^/.\p{C}\p{Zl}\p{Zp}])[^/\p{C}\p{Zl}\p{Zp}]*(/(([^/.\p{C}\p{Zl}\p{Zp}]|[.][^/.\p{C}\p{Zl}\p{Zp}])[^/\p{C}\p{Zl}\p{Zp}]*|[.][.][^/\p{C}\p{Zl}\p{Zp}]+))*$`

func hostIPIs(value string) string {
	return fmt.Sprintf(`spec.ports[0].hostIP: Invalid value: %q: hostIP is %s: it must be an IP address in its usual form, for example 127.0.0.1 or ::1`, value, value)
}

const hostPortTwice = `spec.ports: Invalid value: hostPort 8080 is asked for more than once: it may be used once for each protocol and hostIP, and an empty hostIP is every address`

// twoOn is two ports of one hostPort, with more fields of each.
func twoOn(a, b string) string {
	return `ports: [{name: a, port: 80, hostPort: 8080, ` + a + `}, {name: b, port: 81, hostPort: 8080, ` + b + `}]`
}

func rootDiskIs(value string) string {
	return `spec.resource: Invalid value: rootDisk is ` + value + `: it must be a quantity from 1Mi to 1Pi, for example 40G`
}

var specCases = map[string]createCase{
	"action off": {`action: "off"`, []string{
		`spec.action: Unsupported value: "off": supported values: "active", "stopped", "paused"`,
	}},
	"restartPolicy Sometimes": {`restartPolicy: Sometimes`, []string{
		`spec.restartPolicy: Unsupported value: "Sometimes": supported values: "Always", "OnFailure", "Never"`,
	}},
	"deletionPolicy Orphan": {`deletionPolicy: Orphan`, []string{
		`spec.deletionPolicy: Unsupported value: "Orphan": supported values: "Delete", "Retain"`,
	}},
	"pullPolicy Sometimes": {`image: {source: nginx, pullPolicy: Sometimes}`, []string{
		`spec.image.pullPolicy: Unsupported value: "Sometimes": supported values: "IfNotPresent", "Always", "Never"`,
	}},
	"grace period -1": {`shutdownGracePeriodSeconds: -1`, []string{
		`spec.shutdownGracePeriodSeconds: Invalid value: -1: spec.shutdownGracePeriodSeconds in body should be greater than or equal to 0`,
	}},
	"grace period of two days": {`shutdownGracePeriodSeconds: 172800`, []string{
		`spec.shutdownGracePeriodSeconds: Invalid value: 172800: spec.shutdownGracePeriodSeconds in body should be less than or equal to 86400`,
	}},
	"restartedAt now": {`restartedAt: now`, []string{
		`spec.restartedAt: Invalid value: "now": spec.restartedAt in body must be of type date-time: "now"`,
	}},
	"driver Docker": {`driver: Docker`, []string{
		`spec.driver: Invalid value: "Docker": spec.driver in body should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'`,
	}},
	"driver empty": {`driver: ""`, []string{
		`spec.driver: Invalid value: "": spec.driver in body should be at least 1 chars long`,
	}},
	"image of nothing": {`image: {}`, []string{
		`spec.image: Invalid value: source or kernel is required; leave image out for the driver's default`,
	}},
	"image with an escape sequence": {`image: {source: "a\u001b[31m"}`, []string{
		`spec.image.source: Invalid value: "a\x1b[31m": ` + unprintable,
	}},
	"image of two lines": {`image: {source: "a\nb"}`, []string{
		`spec.image.source: Invalid value: "a\nb": ` + unprintable,
	}},
	"kernel with a C1 control": {`image: {kernel: {source: "/boot/\u009b31m"}}`, []string{
		`spec.image.kernel.source: Invalid value: "/boot/\u009b31m": ` + unprintable,
	}},
	"initrd written backwards": {`image: {kernel: {source: /boot/vmlinuz, initrd: "/boot/\u202egmi"}}`, []string{
		`spec.image.kernel.initrd: Invalid value: "/boot/\u202egmi": ` + unprintable,
	}},
	"volume's image that no one sees": {`volumes: [{name: data, size: 1G, source: {image: {source: "a\u200b"}}}]`, []string{
		`spec.volumes[0].source.image.source: Invalid value: "a\u200b": ` + unprintable,
	}},
	"image in another script": {`image: {source: "/images/größe 漢字.qcow2"}`, nil},
	"checksum md5": {`image: {source: nginx, checksum: "md5:00"}`, []string{
		`spec.image.checksum: Invalid value: "md5:00": spec.image.checksum in body should match '^sha256:[0-9a-f]{64}$'`,
	}},
	"kernel without source": {`image: {kernel: {cmdline: quiet}}`, []string{
		`spec.image.kernel.source: Required value`,
	}},
	"kernel alone": {`image: {kernel: {source: /boot/vmlinuz}}`, nil},

	"port 0": {`ports: [{name: http, port: 0}]`, []string{
		`spec.ports[0].port: Invalid value: 0: spec.ports[0].port in body should be greater than or equal to 1`,
	}},
	"port 65536": {`ports: [{name: http, port: 65536}]`, []string{
		`spec.ports[0].port: Invalid value: 65536: spec.ports[0].port in body should be less than or equal to 65535`,
	}},
	"hostPort 0": {`ports: [{name: http, port: 80, hostPort: 0}]`, []string{
		`spec.ports[0].hostPort: Invalid value: 0: spec.ports[0].hostPort in body should be greater than or equal to 1`,
	}},
	"hostPort 65536": {`ports: [{name: http, port: 80, hostPort: 65536}]`, []string{
		`spec.ports[0].hostPort: Invalid value: 65536: spec.ports[0].hostPort in body should be less than or equal to 65535`,
	}},
	"hostIP of a name":        {`ports: [{name: http, port: 80, hostIP: localhost}]`, []string{hostIPIs("localhost")}},
	"hostIP and more":         {`ports: [{name: http, port: 80, hostIP: "127.0.0.1,x"}]`, []string{hostIPIs("127.0.0.1,x")}},
	"hostIP 127.1":            {`ports: [{name: http, port: 80, hostIP: "127.1"}]`, []string{hostIPIs("127.1")}},
	"hostIP of IPv4 in IPv6":  {`ports: [{name: http, port: 80, hostIP: "::ffff:127.0.0.1"}]`, []string{hostIPIs("::ffff:127.0.0.1")}},
	"hostIP of leading zeros": {`ports: [{name: http, port: 80, hostIP: "127.0.0.01"}]`, []string{hostIPIs("127.0.0.01")}},
	"hostIP in a long form":   {`ports: [{name: http, port: 80, hostIP: "0:0:0:0:0:0:0:1"}]`, []string{hostIPIs("0:0:0:0:0:0:0:1")}},
	"hostIP as a number":      {`ports: [{name: http, port: 80, hostIP: "2130706433"}]`, []string{hostIPIs("2130706433")}},
	"hostIP of a zone":        {`ports: [{name: http, port: 80, hostIP: "fe80::1%eth0"}]`, []string{hostIPIs("fe80::1%eth0")}},
	"protocol SCTP": {`ports: [{name: http, port: 80, protocol: SCTP}]`, []string{
		`spec.ports[0].protocol: Unsupported value: "SCTP": supported values: "TCP", "UDP"`,
	}},
	"port without name": {`ports: [{port: 80}]`, []string{`spec.ports[0].name: Required value`}},
	"two ports of one name": {`ports: [{name: http, port: 80}, {name: http, port: 81}]`, []string{
		`spec.ports[1]: Duplicate value: {"name":"http"}`,
	}},
	"two ports of one hostPort": {`ports: [{name: a, port: 80, hostPort: 8080}, {name: b, port: 81, hostPort: 8080}]`, []string{
		hostPortTwice,
	}},
	"one hostPort, two hostIPs":                 {twoOn("hostIP: 127.0.0.1", "hostIP: 127.0.0.2"), nil},
	"one hostPort, two families":                {twoOn("hostIP: 0.0.0.0", `hostIP: "::1"`), nil},
	"one hostPort, one hostIP":                  {twoOn("hostIP: 127.0.0.1", "hostIP: 127.0.0.1"), []string{hostPortTwice}},
	"one hostPort, one hostIP and all":          {twoOn("hostIP: 127.0.0.1", `protocol: TCP`), []string{hostPortTwice}},
	"one hostPort, one hostIP and an empty one": {twoOn("hostIP: 127.0.0.1", `hostIP: ""`), []string{hostPortTwice}},
	"one hostPort, one hostIP and all of IPv4":  {twoOn("hostIP: 0.0.0.0", "hostIP: 127.0.0.1"), []string{hostPortTwice}},
	"one hostPort, one hostIP and all of IPv6":  {twoOn(`hostIP: "::1"`, `hostIP: "::"`), []string{hostPortTwice}},
	"the hostPort that is asked for twice is named": {
		`ports: [{name: a, port: 80, hostPort: 8079, hostIP: 127.0.0.1}, {name: b, port: 81, hostPort: 8079, hostIP: 127.0.0.2}, ` +
			`{name: c, port: 82, hostPort: 8080}, {name: d, port: 83, hostPort: 8080}]`, []string{hostPortTwice},
	},
	"two ports of one number": {`ports: [{name: a, port: 80, hostPort: 8080}, {name: b, port: 80}]`, []string{
		`spec.ports: Invalid value: port 80 is asked for more than once: one may be used once for each protocol`,
	}},
	"one hostPort, two protocols":     {`ports: [{name: a, port: 53, hostPort: 53}, {name: b, port: 53, hostPort: 53, protocol: UDP}]`, nil},
	"two ports that the engine hosts": {`ports: [{name: a, port: 80}, {name: b, port: 81}]`, nil},
	"33 ports": {`ports: [` + repeat(33, `{name: p%d, port: 80}`) + `]`, []string{
		`spec.ports: Too many: 33: must have at most 32 items`,
	}},

	"probe of nothing": {`readinessProbe: {}`, []string{`spec.readinessProbe.tcpSocket: Required value`}},
	"probe of port 0": {`readinessProbe: {tcpSocket: {port: 0}}`, []string{
		`spec.readinessProbe.tcpSocket.port: Invalid value: 0: spec.readinessProbe.tcpSocket.port in body should be greater than or equal to 1`,
	}},

	"volumes":                  {`volumes: [{name: data, size: 10G}, {name: tools, size: 1G, readOnly: true, source: {image: {source: tools}}}]`, nil},
	"volumes that are mounted": {`volumes: [{name: a, size: 1G, mountPath: /srv/a..b}, {name: b, size: 1G, mountPath: /etc/.b}, {name: c, size: 1G}, {name: d, size: 1G, mountPath: /device}]`, nil},
	"volume mounted on a relative path": {`volumes: [{name: data, size: 1G, mountPath: srv}]`, []string{
		`spec.volumes[0].mountPath: Invalid value: "srv": mountPath must be an absolute path without '.', '..', '//' and a '/' at its end, for example /srv/data`,
	}},
	"volumes mounted on odd paths": {`volumes: [{name: a, size: 1G, mountPath: /srv/../a}, {name: b, size: 1G, mountPath: /srv/}, {name: c, size: 1G, mountPath: /}, {name: d, size: 1G, mountPath: /srv//d}]`, []string{
		`spec.volumes[0].mountPath: Invalid value: "/srv/../a": mountPath must be an absolute path without '.', '..', '//' and a '/' at its end, for example /srv/data`,
		`spec.volumes[1].mountPath: Invalid value: "/srv/": mountPath must be an absolute path without '.', '..', '//' and a '/' at its end, for example /srv/data`,
		`spec.volumes[2].mountPath: Invalid value: "/": mountPath must be an absolute path without '.', '..', '//' and a '/' at its end, for example /srv/data`,
		`spec.volumes[3].mountPath: Invalid value: "/srv//d": mountPath must be an absolute path without '.', '..', '//' and a '/' at its end, for example /srv/data`,
	}},
	"volumes mounted on the machine's files": {`volumes: [{name: a, size: 1G, mountPath: /etc}, {name: b, size: 1G, mountPath: /dev/shm}, {name: c, size: 1G, mountPath: /proc}]`, []string{
		`spec.volumes[0].mountPath: Invalid value: "/etc": mountPath must not be /etc or in /proc, /sys or /dev`,
		`spec.volumes[1].mountPath: Invalid value: "/dev/shm": mountPath must not be /etc or in /proc, /sys or /dev`,
		`spec.volumes[2].mountPath: Invalid value: "/proc": mountPath must not be /etc or in /proc, /sys or /dev`,
	}},
	"two volumes mounted on one path": {`volumes: [{name: a, size: 1G, mountPath: /srv}, {name: b, size: 1G, mountPath: /srv}]`, []string{
		`spec.volumes: Invalid value: a mountPath may be used once`,
	}},
	"volume without size": {`volumes: [{name: data}]`, []string{
		`spec.volumes[0].size: Required value`,
	}},
	"volume of size 1": {`volumes: [{name: data, size: 1}]`, []string{
		`spec.volumes[0].size: Invalid value: 1: size is 1: it must be a quantity from 1Mi to 1Pi, for example 10G`,
	}},
	"volume of size big": {`volumes: [{name: data, size: big}]`, []string{
		`spec.volumes[0].size: Invalid value: "big": size is big: it must be a quantity from 1Mi to 1Pi, for example 10G`,
	}},
	"volume of size 2Pi": {`volumes: [{name: data, size: 2Pi}]`, []string{
		`spec.volumes[0].size: Invalid value: "2Pi": size is 2Pi: it must be a quantity from 1Mi to 1Pi, for example 10G`,
	}},
	"volume of a path": {`volumes: [{name: ../x, size: 1G}]`, []string{
		`spec.volumes[0].name: Invalid value: "../x": spec.volumes[0].name in body should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'`,
	}},
	"volume of the seed's name": {`volumes: [{name: CIDATA, size: 1G}]`, []string{
		`spec.volumes[0].name: Invalid value: "CIDATA": spec.volumes[0].name in body should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'`,
	}},
	"volume of a long name": {`volumes: [{name: ` + strings.Repeat("x", 21) + `, size: 1G}]`, []string{
		`spec.volumes[0].name: Too long: may not be more than 20 bytes`,
	}},
	"two volumes of one name": {`volumes: [{name: data, size: 1G}, {name: data, size: 1G}]`, []string{
		`spec.volumes[1]: Duplicate value: {"name":"data"}`,
	}},
	"volume of a kernel": {`volumes: [{name: data, size: 1G, source: {image: {kernel: {source: vmlinuz}}}}]`, []string{
		`spec.volumes[0].source.image: Invalid value: source is required and kernel is not allowed: a volume is not booted`,
	}},
	"17 volumes": {`volumes: [` + repeat(17, `{name: v%d, size: 1G}`) + `]`, []string{
		`spec.volumes: Too many: 17: must have at most 16 items`,
	}},

	"files": {`files: [{mountPath: /etc/tls, secret: {secretName: tls, items: [{key: tls.key, path: private/key.pem, mode: 256}], defaultMode: 292, optional: true}}, {mountPath: /..a/b c, configMap: {name: app}}]`, nil},
	"files of both": {`files: [{mountPath: /a, secret: {secretName: a}, configMap: {name: a}}]`, []string{
		`spec.files[0]: Invalid value: exactly one of secret and configMap is required`,
	}},
	"files of none": {`files: [{mountPath: /a}]`, []string{`spec.files[0]: Invalid value: exactly one of secret and configMap is required`}},
	"files at one place": {`files: [{mountPath: /a, secret: {secretName: a}}, {mountPath: /a, secret: {secretName: b}}]`, []string{
		`spec.files[1]: Duplicate value: {"mountPath":"/a"}`,
	}},
	"files inside files": {`files: [{mountPath: /a, secret: {secretName: a}}, {mountPath: /a/b, secret: {secretName: b}}]`, []string{
		`spec.files: Invalid value: a mountPath must not be inside another one`,
	}},
	"files at /":          {`files: [{mountPath: /, secret: {secretName: a}}]`, []string{mountPathIs("/")}},
	"files at a":          {`files: [{mountPath: a, secret: {secretName: a}}]`, []string{mountPathIs("a")}},
	"files at /a/":        {`files: [{mountPath: /a/, secret: {secretName: a}}]`, []string{mountPathIs("/a/")}},
	"files at /a/../b":    {`files: [{mountPath: /a/../b, secret: {secretName: a}}]`, []string{mountPathIs("/a/../b")}},
	"files at /etc":       {`files: [{mountPath: /etc, secret: {secretName: a}}]`, []string{mountPathHides("/etc")}},
	"files below /proc":   {`files: [{mountPath: /proc/1, secret: {secretName: a}}]`, []string{mountPathHides("/proc/1")}},
	"files at /sys":       {`files: [{mountPath: /sys, secret: {secretName: a}}]`, []string{mountPathHides("/sys")}},
	"files below /dev":    {`files: [{mountPath: /dev/x, secret: {secretName: a}}]`, []string{mountPathHides("/dev/x")}},
	"file with ..":        {fileAt("../a"), []string{filePathIs("../a")}},
	"file with .. inside": {fileAt("a/../b"), []string{filePathIs("a/../b")}},
	"file at /":           {fileAt("/a"), []string{filePathIs("/a")}},
	"file of data":        {fileAt("..data"), []string{filePathIs("..data")}},
	"file with an escape": {fileAt(`"a\u001bb"`), []string{filePathIs("a\x1bb")}},
	"file at .":           {fileAt("a/."), []string{filePathIs("a/.")}},
	"file at //":          {fileAt("a//b"), []string{filePathIs("a//b")}},
	"files with dots": {`files: [{mountPath: /a, secret: {secretName: a, items: [{key: a, path: .a}, {key: b, path: a/..b/...}, {key: c, path: a.b/c d}, {key: .c, path: "."}]}}]`, []string{
		strings.ReplaceAll(filePathIs("."), "items[0]", "items[3]"),
	}},
	"files over a volume": {`files: [{mountPath: /a, secret: {secretName: a}}], volumes: [{name: v, size: 1G, mountPath: /a}]`, []string{filesHide}},
	"files over a parent": {`files: [{mountPath: /a, secret: {secretName: a}}], volumes: [{name: v, size: 1G, mountPath: /a/b}]`, []string{filesHide}},
	"files in a volume":   {`files: [{mountPath: /a/b, secret: {secretName: a}}, {mountPath: /ab, secret: {secretName: a}}], volumes: [{name: v, size: 1G, mountPath: /a}, {name: w, size: 1G}]`, nil},
	"file mode 01000": {`files: [{mountPath: /a, secret: {secretName: a, defaultMode: 512}}]`, []string{
		`spec.files[0].secret.defaultMode: Invalid value: 512: spec.files[0].secret.defaultMode in body should be less than or equal to 511`,
	}},
	"17 files": {`files: [` + repeat(17, `{mountPath: /a%d, configMap: {name: a}}`) + `]`, []string{
		`spec.files: Too many: 17: must have at most 16 items`,
	}},

	"userData inline":        {`userData: {inline: "#cloud-config"}`, nil},
	"userData from a Secret": {`userData: {secretKeyRef: {name: vm, key: user-data}}`, nil},
	"userData of nothing": {`userData: {}`, []string{
		`spec.userData: Invalid value: exactly one of inline and secretKeyRef is required`,
	}},
	"networkData of both": {`networkData: {inline: "x", secretKeyRef: {name: vm, key: network}}`, []string{
		`spec.networkData: Invalid value: exactly one of inline and secretKeyRef is required`,
	}},
	"Secret key with a slash": {`userData: {secretKeyRef: {name: vm, key: a/b}}`, []string{
		`spec.userData.secretKeyRef.key: Invalid value: "a/b": spec.userData.secretKeyRef.key in body should match '^[-._a-zA-Z0-9]+$'`,
	}},
	"command, args, env, workingDir": {`command: [sh, -c], args: ["", "echo $(date)"], workingDir: /srv, user: "app:50", init: Drover, sysctls: [{name: net.core.somaxconn, value: "512"}, {name: net/ipv4/conf/eth0.1/forwarding, value: "1 2"}], ` +
		`env: [{name: A}, {name: "b c-1.<>!", value: "=\n$(A)"}, {name: S, valueFrom: {secretKeyRef: {name: vm, key: s, optional: true}}}, {name: E, value: "", valueFrom: {secretKeyRef: {name: vm, key: s}}}]`, nil},
	"empty command, args and env": {`command: [], args: [], env: []`, nil},
	"command without a program": {`command: ["", x]`, []string{
		`spec.command: Invalid value: the first element is the program, and must not be empty; leave command out for that of the image`,
	}},
	"command with NUL": {`command: [sh, "a\0"]`, []string{`spec.command[1]: Invalid value: "a\x00": NUL characters are not allowed`}},
	"args with NUL":    {`args: ["a\0"]`, []string{`spec.args[0]: Invalid value: "a\x00": NUL characters are not allowed`}},
	"args of 128 KiB":  {`args: [` + repeat(4, strings.Repeat("x", 32767)) + `]`, nil},
	"args of more":     {`args: [` + repeat(4, strings.Repeat("x", 32767)) + `, ""]`, []string{tooManyBytes("args", "each element")}},
	"command of more":  {`command: [` + repeat(2, strings.Repeat("漢", 32767)) + `]`, []string{tooManyBytes("command", "each element")}},
	"257 args": {`args: [` + repeat(257, `a`) + `]`, []string{
		`spec.args: Too many: 257: must have at most 256 items`,
	}},
	"args with a long one": {`args: [` + strings.Repeat("x", 32768) + `]`, []string{`spec.args[0]: Too long: may not be more than 32767 bytes`}},
	"args of numbers":      {`args: [1]`, []string{`spec.args[0]: Invalid value: "integer": spec.args[0] in body must be of type string: "integer"`}},
	"env of 128 KiB":       {`env: [` + repeat(4, `{name: N%d, value: `+strings.Repeat("x", 32764)+`}`) + `]`, nil},
	"env of more":          {`env: [` + repeat(4, `{name: N%d, value: `+strings.Repeat("x", 32765)+`}`) + `]`, []string{tooManyBytes("env", "each variable")}},
	"env twice": {`env: [{name: A, value: "1"}, {name: A, value: "2"}]`, []string{
		`spec.env[1]: Duplicate value: {"name":"A"}`,
	}},
	"env name with =":    {`env: [{name: A=B}]`, []string{`spec.env[0].name: Invalid value: "A=B": name must consist of printable ASCII characters without =`}},
	"env name with é":    {`env: [{name: é}]`, []string{`spec.env[0].name: Invalid value: "é": name must consist of printable ASCII characters without =`}},
	"env name of a line": {`env: [{name: "A\n"}]`, []string{`spec.env[0].name: Invalid value: "A\n": name must consist of printable ASCII characters without =`}},
	"env without name":   {`env: [{value: "1"}]`, []string{`spec.env[0].name: Required value`}},
	"env value with NUL": {`env: [{name: A, value: "\0"}]`, []string{`spec.env[0].value: Invalid value: "\x00": NUL characters are not allowed`}},
	"env of both": {`env: [{name: A, value: x, valueFrom: {secretKeyRef: {name: vm, key: s}}}]`, []string{
		`spec.env[0]: Invalid value: only one of value and valueFrom is allowed`,
	}},
	"env from nothing": {`env: [{name: A, valueFrom: {}}]`, []string{`spec.env[0].valueFrom.secretKeyRef: Required value`}},
	"env from a ConfigMap": {`env: [{name: A, valueFrom: {configMapKeyRef: {name: vm, key: s}}}]`, []string{
		`spec.env[0].valueFrom.secretKeyRef: Required value`,
	}},
	"user with a space":           {`user: "a b"`, []string{`spec.user: Invalid value: "a b": spaces, control characters, and those that no one sees or that change the direction of writing, are not allowed`}},
	"user with three parts":       {`user: "a:b:c"`, []string{`spec.user: Invalid value: "a:b:c": user must be USER or USER:GROUP, each a name or an ID, for example 1000 or app:staff`}},
	"sysctl in upper case":        {`sysctls: [{name: net.Core, value: "1"}]`, []string{`spec.sysctls[0].name: Invalid value: "net.Core": name must consist of segments of lower-case letters, digits, - and _, separated by . or /, for example net.core.somaxconn`}},
	"sysctl with a path":          {`sysctls: [{name: ../a, value: "1"}]`, []string{`spec.sysctls[0].name: Invalid value: "../a": name must consist of segments of lower-case letters, digits, - and _, separated by . or /, for example net.core.somaxconn`}},
	"sysctl of two lines":         {`sysctls: [{name: a, value: "1\n2"}]`, []string{`spec.sysctls[0].value: Invalid value: "1\n2": control characters, and those that no one sees or that change the direction of writing, are not allowed`}},
	"sysctl twice":                {`sysctls: [{name: a, value: "1"}, {name: a, value: "2"}]`, []string{`spec.sysctls[1]: Duplicate value: {"name":"a"}`}},
	"sysctl without value":        {`sysctls: [{name: a}]`, []string{`spec.sysctls[0].value: Required value`}},
	"unknown init":                {`init: tini`, []string{`spec.init: Unsupported value: "tini": supported values: "Image", "Drover"`}},
	"relative workingDir":         {`workingDir: srv`, []string{`spec.workingDir: Invalid value: "srv": workingDir must be an absolute path, for example /srv`}},
	"workingDir of two lines":     {`workingDir: "/a\nb"`, []string{`spec.workingDir: Invalid value: "/a\nb": control characters, and those that no one sees or that change the direction of writing, are not allowed`}},
	"workingDir with a long name": {`workingDir: /srv/` + strings.Repeat("漢", 256), []string{`spec.workingDir: Invalid value: "/srv/` + strings.Repeat("漢", 256) + `": each name in the path may have at most 255 characters`}},
	"mountPaths with long names": {`volumes: [{name: a, size: 1G, mountPath: /` + strings.Repeat("x", 256) + `}], files: [{mountPath: /` + strings.Repeat("y", 256) + `, secret: {secretName: a}}]`, []string{
		`spec.files[0].mountPath: Invalid value: "/` + strings.Repeat("y", 256) + `": each name in the path may have at most 255 characters`,
		`spec.volumes[0].mountPath: Invalid value: "/` + strings.Repeat("x", 256) + `": each name in the path may have at most 255 characters`,
	}},
	"workingDir of much length": {`workingDir: /` + strings.Repeat("x", 1024), []string{`spec.workingDir: Too long: may not be more than 1024 bytes`}},
	"an SSH key of two lines": {`sshAuthorizedKeys: ["ssh-ed25519 AAAA a\nssh-ed25519 AAAA b"]`, []string{
		`spec.sshAuthorizedKeys[0]: Invalid value: "ssh-ed25519 AAAA a\nssh-ed25519 AAAA b": spec.sshAuthorizedKeys[0] in body should match '^[^\r\n]+$'`,
	}},
}

func tooManyBytes(field, each string) string {
	what := ""
	if field == "env" {
		what = ", names and values"
	}
	more := map[string]string{"each element": "one", "each variable": "two"}[each]
	return "spec." + field + ": Invalid value: at most 131072 bytes are allowed in all" + what + ", with " + more + " more for " + each
}

func TestUpdate(t *testing.T) {
	s := connect(t)
	for name, tc := range updateCases {
		t.Run(name, func(t *testing.T) { s.checkUpdate(t, vm(tc.before), vm(tc.after), tc.want) })
	}
}

const unprintable = "control characters, and those that no one sees or that change the direction of writing, are not allowed"

const immutableVolume = `spec.volumes[1].source: Invalid value: source and checksum of a volume's image are immutable: the volume is made from it once, so another one needs a volume of another name`

const immutableAnew = `; to change it, delete the VirtualMachine and create it again`

const immutable = `; to move the VirtualMachine to another driver, delete it and create it again`

var updateCases = map[string]struct {
	before, after string
	want          []string
}{
	"nothing":         {minimal, minimal, nil},
	"cpu and memory":  {minimal, `{resource: {cpu: 500m, memory: 512Mi}}`, nil},
	"cpu 0":           {minimal, `{resource: {cpu: 0, memory: 1G}}`, []string{cpuIs("0")}},
	"rootDisk added":  {minimal, `{resource: {cpu: 1, memory: 1G, rootDisk: 1G}}`, nil},
	"rootDisk grows":  {`{resource: {cpu: 1, memory: 1G, rootDisk: 40G}}`, `{resource: {cpu: 1, memory: 1G, rootDisk: 40Gi}}`, nil},
	"rootDisk equals": {`{resource: {cpu: 1, memory: 1G, rootDisk: 40G}}`, `{resource: {cpu: 1, memory: 1G, rootDisk: 40000M}}`, nil},
	"rootDisk shrinks": {`{resource: {cpu: 1, memory: 1G, rootDisk: 40Gi}}`, `{resource: {cpu: 1, memory: 1G, rootDisk: 40G}}`, []string{
		`spec.resource: Invalid value: rootDisk may only grow: it was 40Gi and is now 40G`,
	}},
	"rootDisk removed": {`{resource: {cpu: 1, memory: 1G, rootDisk: 40G}}`, minimal, []string{
		`spec.resource: Invalid value: rootDisk may only grow: it was 40G and is now not set`,
	}},
	"rootDisk broken": {`{resource: {cpu: 1, memory: 1G, rootDisk: 40G}}`, `{resource: {cpu: 1, memory: 1G, rootDisk: big}}`, []string{rootDiskIs("big")}},
	"driver kept":     {`{driver: fake, resource: {cpu: 1, memory: 1G}}`, `{driver: fake, resource: {cpu: 2, memory: 1G}}`, nil},
	"driver added": {minimal, `{driver: fake, resource: {cpu: 1, memory: 1G}}`, []string{
		`spec.driver: Invalid value: driver is immutable: it was not set and is now fake` + immutable,
	}},
	"driver changed": {`{driver: docker, resource: {cpu: 1, memory: 1G}}`, `{driver: fake, resource: {cpu: 1, memory: 1G}}`, []string{
		`spec.driver: Invalid value: driver is immutable: it was docker and is now fake` + immutable,
	}},
	"driver removed": {`{driver: docker, resource: {cpu: 1, memory: 1G}}`, minimal, []string{
		`spec.driver: Invalid value: driver is immutable: it was docker and is now not set` + immutable,
	}},
	"ephemeral added": {minimal, `{ephemeral: true, resource: {cpu: 1, memory: 1G}}`, []string{
		`spec.ephemeral: Invalid value: ephemeral is immutable: it was false and is now true` + immutableAnew,
	}},
	"ephemeral spelled out": {minimal, `{ephemeral: false, resource: {cpu: 1, memory: 1G}}`, nil},
	"storageClassName changed": {`{storageClassName: a, resource: {cpu: 1, memory: 1G}}`, `{storageClassName: b, resource: {cpu: 1, memory: 1G}}`, []string{
		`spec.storageClassName: Invalid value: storageClassName is immutable: it was "a" and is now "b"` + immutableAnew,
	}},
	"storageClassName removed": {`{storageClassName: a, resource: {cpu: 1, memory: 1G}}`, minimal, []string{
		`spec.storageClassName: Invalid value: storageClassName is immutable: it was "a" and is now not set` + immutableAnew,
	}},
	"evictionPolicy":          {minimal, `{evictionPolicy: Block, resource: {cpu: 1, memory: 1G}}`, nil},
	"volume grows":            {volume("2G"), volume("3G"), nil},
	"volume removed":          {volume("2G"), minimal, nil},
	"volume's pullPolicy":     {imageVolume("{source: a, pullPolicy: Never}"), imageVolume("{source: a}"), nil},
	"volume's image changed":  {imageVolume("{source: a}"), imageVolume("{source: b}"), []string{immutableVolume}},
	"volume's image added":    {volume("2G"), imageVolume("{source: a}"), []string{immutableVolume}},
	"volume's image removed":  {imageVolume("{source: a}"), volume("2G"), []string{immutableVolume}},
	"volume's checksum added": {imageVolume("{source: a}"), imageVolume(`{source: a, checksum: "sha256:` + strings.Repeat("0", 64) + `"}`), []string{immutableVolume}},
	"volume shrinks": {volume("2G"), volume("1G"), []string{
		`spec.volumes[1].size: Invalid value: "1G": size may only grow: it was 2G and is now 1G`,
	}},
}

func TestStatus(t *testing.T) {
	s := connect(t)
	cases := map[string]struct {
		status string
		want   []string
	}{
		"usage of zero": {`{phase: Active, server: {id: abc, usage: {cpu: 0, memory: 0.01}}}`, nil},
		"phase Broken": {`{phase: Broken}`, []string{
			`status.phase: Unsupported value: "Broken": supported values: "Creating", "Active", "Stopped", "Paused", "Failed", "Terminating", "Unknown"`,
		}},
		"usage below zero": {`{server: {usage: {cpu: -1, memory: 1}}}`, []string{
			`status.server.usage.cpu: Invalid value: -1: server.usage.cpu in body should be greater than or equal to 0`,
		}},
		"an operation": {`{operation: {type: Create, attempts: 2, startedAt: "2026-01-02T03:04:05.000006Z", epoch: 9223372036854775807}}`, nil},
		"an operation of no type": {`{operation: {startedAt: "2026-01-02T03:04:05.000006Z"}}`, []string{
			`status.operation.type: Required value`,
		}},
		"two conditions of one type": {`{conditions: [` + condition + `, ` + condition + `]}`, []string{
			`status.conditions[1]: Duplicate value: {"type":"Ready"}`,
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) { s.checkUpdate(t, vm(minimal), withStatus(tc.status), tc.want, "status") })
	}
}

const condition = `{type: Ready, status: "True", reason: Running, message: "", lastTransitionTime: "2026-01-02T03:04:05Z"}`

func expect(t *testing.T, got, want []string) {
	t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	assert.True(t, slices.Equal(got, want), "errors are\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
}

// vm is a manifest with the given spec.
func vm(spec string) string {
	return `{apiVersion: cloudnative.tw/v1alpha1, kind: VirtualMachine, metadata: {name: test-vm, namespace: default}, spec: ` + spec + `}`
}

func named(name string) string {
	return strings.Replace(vm(minimal), "test-vm", name, 1)
}

func withStatus(status string) string {
	return strings.TrimSuffix(vm(minimal), "}") + ", status: " + status + "}"
}

func volume(size string) string {
	return `{resource: {cpu: 1, memory: 1G}, volumes: [{name: a, size: 1G}, {name: b, size: ` + size + `}]}`
}

func imageVolume(image string) string { return volume(`2G, source: {image: ` + image + `}`) }

func repeat(n int, format string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = strings.ReplaceAll(format, "%d", fmt.Sprint(i+1))
	}
	return strings.Join(items, ", ")
}

// largest is a spec with as much of everything as is allowed, to see that the
// rules stay within kube-apiserver's budget for one request.
func largest() string {
	quantity := `"` + strings.Repeat("0", 30) + `1G"`
	text := func(n int) string { return strings.Repeat("x", n) }
	return `{resource: {cpu: "` + strings.Repeat("0", 31) + `1", memory: ` + quantity + `, rootDisk: ` + quantity + `}, ` +
		`driver: ` + text(63) + `, image: {source: ` + text(1024) + `, kernel: {source: ` + text(1024) + `}}, ` +
		`volumes: [` + repeat(16, `{name: v%d, size: `+quantity+`, source: {image: {source: `+text(1024)+`}}}`) + `], ` +
		`userData: {inline: ` + text(65536) + `}, networkData: {inline: ` + text(65536) + `}, ` +
		`sshAuthorizedKeys: [` + repeat(32, text(16384)) + `], ` +
		`command: [` + repeat(256, text(511)) + `], args: [` + repeat(256, text(511)) + `], workingDir: ` + strings.Repeat("/"+text(255), 4) + `, ` +
		`env: [` + repeat(256, `{name: n%d, value: `+text(500)+`}`) + `], ` +
		`ports: [` + repeat(32, `{name: p%d, port: 8%d, hostPort: 8080, hostIP: "2001:db8:1111:1111:1111:1111:1111:1%d"}`) + `]}`
}
