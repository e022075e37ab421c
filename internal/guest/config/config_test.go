// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"cloudnative.tw/drover/test/assert"
)

func validConfig() Config {
	return Config{
		Version: Version, Hostname: "web-1", Args: []string{"/bin/sh", "-c", "echo \"a\"\n"}, Env: []string{"A=b", "EMPTY="},
		User: "app:staff", WorkingDir: "/srv", StopSignal: "SIGQUIT", Init: InitImage, Stdin: true, TTY: true, Sysctls: []Sysctl{{"net.core.somaxconn", "512"}, {"net.ipv4.conf.eth0/1.forwarding", "1"}}, GraceSeconds: 30,
		Network: Network{Address: netip.MustParsePrefix("10.0.2.15/24"), Gateway: netip.MustParseAddr("10.0.2.2"), MTU: 1500, Resolvers: []netip.Addr{netip.MustParseAddr("192.0.2.53")}, Search: []string{"example.org"}},
		Disks:   Disks{Root: RootSerial, Data: DataSerial, Modules: ModulesSerial},
		Volumes: []Volume{{Serial: "drover-root"}, {Serial: "b", Path: "/srv/b", ReadOnly: true}}, ImageVolumes: []string{"/srv/b", "/var/lib/c"},
		Nonce: bytes.Repeat([]byte{7}, NonceBytes),
	}
}

// TestRoundTrip checks that a guest reads what the host meant.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{validConfig(), {
		Version: Version, Hostname: "a", Args: []string{"true"}, Disks: Disks{Root: "r"}, Nonce: make([]byte, NonceBytes),
	}} {
		text, err := Encode(c)
		assert.NoError(t, err)
		got, err := Decode(text)
		assert.NoError(t, err)
		assert.True(t, reflect.DeepEqual(got, c), "got %+v, want %+v", got, c)
	}
}

// TestCheck checks that what no guest can run is refused by the name of its field.
func TestCheck(t *testing.T) {
	t.Parallel()
	for says, change := range map[string]func(*Config){
		"hostname":            func(c *Config) { c.Hostname = "a.b" },
		"args":                func(c *Config) { c.Args = nil },
		"args names no":       func(c *Config) { c.Args = []string{""} },
		"args has a NUL":      func(c *Config) { c.Args = []string{"a", "b\x00"} },
		"args is not UTF-8":   func(c *Config) { c.Args = []string{"a", "\xff"} },
		"env has the entry":   func(c *Config) { c.Env = []string{"A"} },
		"env, variable A has": func(c *Config) { c.Env = []string{"A=\x00"} },
		"workingDir":          func(c *Config) { c.WorkingDir = "srv" },
		"stopSignal":          func(c *Config) { c.StopSignal = "SIGNONE" },
		"sysctls: \"../a\"":   func(c *Config) { c.Sysctls = []Sysctl{{"../a", "1"}} },
		"sysctls: \"a\"":      func(c *Config) { c.Sysctls = []Sysctl{{"a", "1\n2"}} },
		"init":                func(c *Config) { c.Init = "image" },
		"graceSeconds":        func(c *Config) { c.GraceSeconds = -1 },
		"network.search":      func(c *Config) { c.Network.Search = []string{"a\nnameserver 1.2.3.4"} },
		"network.resolvers":   func(c *Config) { c.Network.Resolvers = []netip.Addr{{}} },
		"disks.root":          func(c *Config) { c.Disks.Root = "" },
		"disks.data":          func(c *Config) { c.Disks.Data = strings.Repeat("d", 21) },
		"disks.modules":       func(c *Config) { c.Disks.Modules = "a b" },
		"different":           func(c *Config) { c.Disks.Data = c.Disks.Root },
		"different serial":    func(c *Config) { c.Disks.Data = c.Disks.Modules },
		"nonce":               func(c *Config) { c.Nonce = nil },
		"at most 1048576":     func(c *Config) { c.Env = []string{"A=" + strings.Repeat("x", MaxBytes)} },
	} {
		c := validConfig()
		change(&c)
		_, err := Encode(c)
		assert.ErrorSays(t, says, err, says)
	}
	_, err := Encode(Config{Hostname: "a", Args: []string{"a"}, Env: []string{"TOKEN=secret\x00"}, Nonce: make([]byte, NonceBytes)})
	assert.True(t, err != nil && !strings.Contains(err.Error(), "secret"), "the error %v shows the value of a variable", err)
}

// TestDecode checks that a guest refuses what it does not understand.
func TestDecode(t *testing.T) {
	t.Parallel()
	text, err := json.Marshal(validConfig())
	assert.NoError(t, err)
	version := fmt.Sprintf(`"version":%d`, Version)
	for says, changed := range map[string]string{
		"not valid JSON":         "{",
		"version is 1":           strings.Replace(string(text), version, `"version":1`, 1),
		"unknown field \"more\"": strings.Replace(string(text), version, version+`,"more":1`, 1),
		"at most 1048576":        strings.Repeat(" ", MaxBytes+1),
		"hostname":               strings.Replace(string(text), "web-1", "-", 1),
	} {
		assert.ErrorSays(t, says, assert.ErrorOf(Decode([]byte(changed))), says)
	}
}

// TestParseSignal checks the forms that images have.
func TestParseSignal(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{
		"": 15, "SIGTERM": 15, "term": 15, "9": 9, "SIGRTMIN": 34, "SIGRTMIN+3": 37, "RTMAX-1": 63, "SIGUSR1": 10, "64": 64,
		"0": 0, "65": 0, "SIGRTMIN+31": 0, "SIGRTMAX-31": 0, "SIGRTMIN+": 0, "TE RM": 0, "-1": 0, "SIG": 0, "SIG9": 0,
	} {
		got, err := ParseSignal(name)
		assert.True(t, got == want && (err == nil) == (want != 0), "%q is %d, %v; want %d", name, got, err, want)
	}
}

// TestReadClaim checks which results of a guest count.
func TestReadClaim(t *testing.T) {
	t.Parallel()
	const started = `{"kind":"started"}` + "\n"
	for text, want := range map[string]Claim{
		"":                            {},
		started:                       {Started: true},
		started + `{"kind":"exited"}`: {Started: true, Ended: true},
		started + `{"kind":"exited","code":3,"message":"a\u001b[2J\nb"}` + "\n":                    {Started: true, Ended: true, Code: 3, Message: "a[2J b"},
		started + `{"kind":"exited","code":143,"signal":15}`:                                       {Started: true, Ended: true, Code: 143, Signal: 15},
		started + `{"kind":"exited","code":1}` + "\n" + `{"kind":"exited","code":0}`:               {Started: true, Ended: true, Code: 1},
		`{"kind":"failed","code":127,"message":"no x"}`:                                            {Ended: true, Failed: true, Code: 127, Message: "no x"},
		`{"kind":"failed","code":127}` + "\n" + started + `{"kind":"exited"}`:                      {Ended: true, Failed: true, Code: 127},
		`{"kind":"exited","code":0}`:                                                               {},
		`{"kind":"failed","code":0}`:                                                               {},
		started + `{"kind":"failed","code":126}`:                                                   {Started: true},
		started + `{"kind":"exited","code":256}`:                                                   {Started: true},
		started + `{"kind":"exited","code":137,"signal":9,"oomKilled":"a\tb"}`:                     {Started: true, Ended: true, Code: 137, Signal: 9, OOMKilled: "a b"},
		started + `{"kind":"exited","code":-1}`:                                                    {Started: true},
		started + `{"kind":"exited","code":1.5}`:                                                   {Started: true},
		started + `{"kind":"exited","code":15,"signal":15}`:                                        {Started: true},
		started + "rubbish\x00\xff\n" + `{"kind":"exited","code":7}`:                               {Started: true, Ended: true, Code: 7},
		started + strings.Repeat("x", maxLine+1) + "\n" + `{"kind":"exited"}`:                      {Started: true},
		started + strings.Repeat("\n", ResultBytes) + `{"kind":"exited"}`:                          {Started: true},
		started + `{"kind":"exited","code":1,"message":"` + strings.Repeat("ä", MaxMessage) + `"}`: {Started: true, Ended: true, Code: 1, Message: strings.Repeat("ä", MaxMessage/2)},
	} {
		got, err := ReadClaim(strings.NewReader(text))
		assert.NoError(t, err)
		assert.True(t, got == want, "%.120q is %+v, want %+v", text, got, want)
	}
}

// FuzzReadClaim checks the bounds of whatever a guest may say.
func FuzzReadClaim(f *testing.F) {
	f.Add([]byte(`{"kind":"started"}` + "\n" + `{"kind":"exited","code":143,"signal":15,"message":"a"}`))
	f.Add([]byte(`{"kind":"failed","code":127,"message":"` + "\u202e" + `"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := ReadClaim(bytes.NewReader(text))
		assert.NoError(t, err)
		assert.True(t, isPossible(c), "%q is %+v", text, c)
		assert.True(t, !strings.ContainsFunc(c.Message+c.OOMKilled, func(r rune) bool { return !unicode.IsPrint(r) }), "%q has the message %q", text, c.Message)
		later, err := ReadClaim(bytes.NewReader(append(bytes.Clone(text), "\n{\"kind\":\"exited\",\"code\":9}\n"...)))
		if assert.NoError(t, err); c.Ended && later != c {
			t.Errorf("%q is %+v, and later %+v", text, c, later)
		}
	})
}

// isPossible reports whether a claim is within its bounds, and says nothing of an end that has not come.
func isPossible(c Claim) bool {
	switch {
	case c.Code < 0 || c.Code > 255 || c.Signal < 0 || c.Signal > 64 || len(c.Message) > MaxMessage || len(c.OOMKilled) > maxProcessName:
		return false
	case !c.Ended:
		return !c.Failed && c.Code == 0 && c.Signal == 0 && c.Message == "" && c.OOMKilled == ""
	}
	return !c.Failed || c.Code != 0
}

// FuzzDecode checks that a configuration that is accepted can be written again.
func FuzzDecode(f *testing.F) {
	text, err := Encode(validConfig())
	assert.NoError(f, err)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := Decode(text)
		if err != nil {
			return
		}
		again, err := Encode(c)
		assert.NoError(t, err)
		_, err = Decode(again)
		assert.NoError(t, err)
	})
}
