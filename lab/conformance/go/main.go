// Every operation of the unmodified Go client of Pegasus, against a running Hedgerow cluster.
//
// Usage: conformance ADDRESS,ADDRESS,... TABLE MISSING_TABLE [KILL_COMMAND RESTART_COMMAND]
//
// TABLE is an empty hash table, MISSING_TABLE a name that no table has. The two commands, run by a shell, kill one node
// and start it again. One line per check, then `N passed, N failed`. The client writes its log into the current folder.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"time"

	"github.com/apache/incubator-pegasus/go-client/pegasus"
)

const (
	// The whole program is given up after this.
	deadline = 5 * time.Minute
	// What one operation may take while nothing is wrong. The client cuts longer ones off at 4.3 s on the wire.
	patience = 4 * time.Second
	// After a kill: how long one attempt and all attempts may take. The client asks for a new leader after a failure,
	// at most once a second.
	attempt  = time.Second
	recovery = 90 * time.Second
)

var passed, failed int

func check(name string, isGood bool, detail ...interface{}) {
	if isGood {
		passed++
		fmt.Println("ok      go: " + name)
		return
	}
	failed++
	text := fmt.Sprint(detail...)
	if len(text) > 600 {
		text = text[:600] + "..."
	}
	fmt.Println("FAILED  go: " + name + ": " + text)
}

func checkEqual(name string, got, wanted interface{}) {
	check(name, reflect.DeepEqual(got, wanted), fmt.Sprintf("got %q, wanted %q", got, wanted))
}

func checkDone(name string, err error) {
	check(name, err == nil, err)
}

func within(limit time.Duration) context.Context {
	// Ends by itself; a program that checks and exits has nothing to gain from releasing it earlier.
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	time.AfterFunc(limit, cancel)
	return ctx
}

func soon() context.Context { return within(patience) }

// refused is for operations that the server refuses: the client repeats most of those until its time is over.
func refused() context.Context { return within(500 * time.Millisecond) }

func b(text string) []byte { return []byte(text) }

func keys(texts ...string) [][]byte {
	all := make([][]byte, 0, len(texts))
	for _, text := range texts {
		all = append(all, b(text))
	}
	return all
}

// pairs gives "key=value" for each row, which prints well.
func pairs(rows []*pegasus.KeyValue) []string {
	all := make([]string, 0, len(rows))
	for _, row := range rows {
		all = append(all, string(row.SortKey)+"="+string(row.Value))
	}
	return all
}

// numbered gives "k%03d=v%03d" for each number from low up to and without high.
func numbered(low, high int) []string {
	all := make([]string, 0, high-low)
	for number := low; number < high; number++ {
		all = append(all, fmt.Sprintf("k%03d=v%03d", number, number))
	}
	return all
}

func main() {
	if len(os.Args) != 4 && len(os.Args) != 6 {
		fmt.Fprintln(os.Stderr, "usage: conformance ADDRESS,ADDRESS,... TABLE MISSING_TABLE [KILL_COMMAND RESTART_COMMAND]")
		os.Exit(2)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(os.Args[1:])
	}()
	select {
	case <-done:
	case <-time.After(deadline):
		check(fmt.Sprintf("the program ends within %v", deadline), false, "gave up")
	}
	fmt.Printf("go: %d passed, %d failed\n", passed, failed)
	if failed > 0 || passed == 0 {
		os.Exit(1)
	}
}

func run(arguments []string) {
	config := pegasus.Config{MetaServers: strings.Split(arguments[0], ",")}
	client := pegasus.NewClient(config)
	_, err := client.OpenTable(soon(), arguments[2])
	check("a table that does not exist cannot be opened", err != nil, "it opened")
	table, err := client.OpenTable(soon(), arguments[1])
	checkDone("open a table", err)
	if err != nil {
		return
	}

	sections := []struct {
		name string
		run  func(pegasus.TableConnector)
	}{
		{"single records", singleRecords},
		{"odd bytes", oddBytes},
		{"many records", manyRecords},
		{"ranges", ranges},
		{"counters", counters},
		{"check and set", checkAndSet},
		{"expiry", expiry},
		{"scans", scans},
		{"concurrency", concurrency},
	}
	for _, section := range sections {
		guarded(section.name, func() { section.run(table) })
	}
	if len(arguments) == 5 {
		guarded("leader change", func() { leaderChange(table, config, arguments[1], arguments[3], arguments[4]) })
	}
	checkDone("close the client", client.Close())
}

// guarded turns a panic, of the client's or ours, into a failed check.
func guarded(name string, section func()) {
	defer func() {
		if reason := recover(); reason != nil {
			check(name+" runs to its end", false, reason)
		}
	}()
	section()
}

func singleRecords(table pegasus.TableConnector) {
	checkDone("set", table.Set(soon(), b("single"), b("a"), b("1")))
	value, err := table.Get(soon(), b("single"), b("a"))
	checkDone("get", err)
	checkEqual("get gives what was set", value, b("1"))
	checkDone("set again", table.Set(soon(), b("single"), b("a"), b("2")))
	value, _ = table.Get(soon(), b("single"), b("a"))
	checkEqual("set again replaces", value, b("2"))
	value, err = table.Get(soon(), b("single"), b("absent"))
	check("get of an absent record", value == nil && err == nil, value, err)

	exists, err := table.Exist(soon(), b("single"), b("a"))
	check("exist", exists && err == nil, exists, err)
	exists, err = table.Exist(soon(), b("single"), b("absent"))
	check("exist of an absent record", !exists && err == nil, exists, err)
	seconds, err := table.TTL(soon(), b("single"), b("a"))
	check("ttl of a record that lives for ever", seconds == -1 && err == nil, seconds, err)
	seconds, err = table.TTL(soon(), b("single"), b("absent"))
	check("ttl of an absent record", seconds == -2 && err == nil, seconds, err)

	checkDone("del", table.Del(soon(), b("single"), b("a")))
	value, err = table.Get(soon(), b("single"), b("a"))
	check("get after del", value == nil && err == nil, value, err)
	checkDone("del of an absent record", table.Del(soon(), b("single"), b("a")))

	checkDone("set for batch get", table.Set(soon(), b("batch1"), b("x"), b("1")))
	checkDone("set for batch get", table.Set(soon(), b("batch2"), b("y"), b("2")))
	values, err := table.BatchGet(soon(), []pegasus.CompositeKey{
		{HashKey: b("batch1"), SortKey: b("x")}, {HashKey: b("nobody"), SortKey: b("z")}, {HashKey: b("batch2"), SortKey: b("y")},
	})
	checkDone("batch get", err)
	checkEqual("batch get keeps the order of its keys", values, [][]byte{b("1"), nil, b("2")})
	checkDone("del", table.Del(soon(), b("batch1"), b("x")))
	checkDone("del", table.Del(soon(), b("batch2"), b("y")))
}

func oddBytes(table pegasus.TableConnector) {
	everyByte := make([]byte, 256)
	for index := range everyByte {
		everyByte[index] = byte(index)
	}
	cases := []struct {
		name                    string
		hashKey, sortKey, value []byte
	}{
		{"an empty sort key", b("odd"), b(""), b("value")},
		{"an empty value", b("odd"), b("empty"), b("")},
		{"keys and a value of every byte", everyByte, everyByte, everyByte},
		{"a hash key of one zero byte", []byte{0}, b("k"), b("zero")},
		{"a hash key of 1,024 bytes", b(strings.Repeat("h", 1024)), b("k"), b("long")},
		{"a value of 400 KiB", b("odd"), b("large"), b(strings.Repeat("0123456789abcdef", 25600))},
	}
	for _, it := range cases {
		checkDone("set with "+it.name, table.Set(soon(), it.hashKey, it.sortKey, it.value))
		value, err := table.Get(soon(), it.hashKey, it.sortKey)
		check("get with "+it.name, err == nil && value != nil && string(value) == string(it.value), err, len(value))
		checkDone("del with "+it.name, table.Del(soon(), it.hashKey, it.sortKey))
	}
	err := table.Set(refused(), b("odd"), b("huge"), make([]byte, 2<<20))
	check("a value of 2 MiB is refused", err != nil, "it was accepted")
	checkDone("the connection survives a refused write", table.Set(soon(), b("odd"), b("small"), b("v")))
	checkDone("del", table.Del(soon(), b("odd"), b("small")))
}

// fill writes the 200 rows k000=v000 ... k199=v199.
func fill(table pegasus.TableConnector, hashKey string) ([][]byte, error) {
	var sortKeys, values [][]byte
	for number := 0; number < 200; number++ {
		sortKeys = append(sortKeys, b(fmt.Sprintf("k%03d", number)))
		values = append(values, b(fmt.Sprintf("v%03d", number)))
	}
	return sortKeys, table.MultiSet(soon(), b(hashKey), sortKeys, values)
}

func manyRecords(table pegasus.TableConnector) {
	sortKeys, err := fill(table, "many")
	checkDone("multi set", err)
	count, err := table.SortKeyCount(soon(), b("many"))
	check("sort key count", count == 200 && err == nil, count, err)
	count, err = table.SortKeyCount(soon(), b("nobody"))
	check("sort key count of an absent hash key", count == 0 && err == nil, count, err)

	rows, all, err := table.MultiGet(soon(), b("many"), keys("k100", "k001", "absent"))
	checkDone("multi get by keys", err)
	check("multi get by keys gives all that exist", all && len(rows) == 2, pairs(rows), all)
	rows, all, err = table.MultiGet(soon(), b("nobody"), nil)
	check("multi get of an absent hash key", err == nil && all && len(rows) == 0, pairs(rows), all, err)

	rows, all, err = table.MultiGet(soon(), b("many"), nil)
	checkDone("multi get of a whole hash key", err)
	checkEqual("multi get stops at its default of 100 rows", pairs(rows), numbered(0, 100))
	check("multi get says that there is more", !all, all)
	options := *pegasus.DefaultMultiGetOptions
	options.MaxFetchCount = 1000
	rows, all, err = table.MultiGetOpt(soon(), b("many"), nil, &options)
	checkEqual("multi get of all rows", pairs(rows), numbered(0, 200))
	check("multi get says that this is all", all && err == nil, all, err)
	options.MaxFetchCount, options.MaxFetchSize = 1000, 40
	rows, all, err = table.MultiGetOpt(soon(), b("many"), nil, &options)
	check("multi get stops near its size limit", err == nil && !all && len(rows) >= 1 && len(rows) <= 6, len(rows), all, err)
	options = *pegasus.DefaultMultiGetOptions
	options.NoValue = true
	rows, _, err = table.MultiGetOpt(soon(), b("many"), keys("k001"), &options)
	check("multi get without values", err == nil && len(rows) == 1 && len(rows[0].Value) == 0, pairs(rows), err)

	checkDone("multi del", table.MultiDel(soon(), b("many"), keys("k000", "k001", "absent")))
	count, _ = table.SortKeyCount(soon(), b("many"))
	checkEqual("sort key count after multi del", count, int64(198))
	checkDone("multi del of the rest", table.MultiDel(soon(), b("many"), sortKeys))
	count, _ = table.SortKeyCount(soon(), b("many"))
	checkEqual("sort key count after the last multi del", count, int64(0))
}

func ranges(table pegasus.TableConnector) {
	sortKeys, err := fill(table, "range")
	checkDone("multi set", err)
	filter := func(kind pegasus.FilterType, pattern string) func(*pegasus.MultiGetOptions) {
		return func(options *pegasus.MultiGetOptions) {
			options.SortKeyFilter = pegasus.Filter{Type: kind, Pattern: b(pattern)}
		}
	}
	cases := []struct {
		name, start, stop string
		change            func(*pegasus.MultiGetOptions)
		wanted            []string
	}{
		{"includes its start only", "k010", "k020", func(*pegasus.MultiGetOptions) {}, numbered(10, 20)},
		{"with both borders", "k010", "k020", func(o *pegasus.MultiGetOptions) { o.StopInclusive = true }, numbered(10, 21)},
		{"without its borders", "k010", "k020", func(o *pegasus.MultiGetOptions) { o.StartInclusive = false }, numbered(11, 20)},
		{"to the end", "k195", "", func(*pegasus.MultiGetOptions) {}, numbered(195, 200)},
		{"from the beginning", "", "k005", func(*pegasus.MultiGetOptions) {}, numbered(0, 5)},
		{"that is empty", "k020", "k010", func(*pegasus.MultiGetOptions) {}, []string{}},
		{"by prefix", "", "", filter(pegasus.FilterTypeMatchPrefix, "k01"), numbered(10, 20)},
		{"by postfix", "", "", filter(pegasus.FilterTypeMatchPostfix, "99"), []string{"k099=v099", "k199=v199"}},
		{"by a match anywhere", "k180", "", filter(pegasus.FilterTypeMatchAnywhere, "19"), numbered(190, 200)},
	}
	for _, it := range cases {
		options := *pegasus.DefaultMultiGetOptions
		it.change(&options)
		rows, all, err := table.MultiGetRangeOpt(soon(), b("range"), b(it.start), b(it.stop), &options)
		check("range "+it.name+" is complete", err == nil && all, all, err)
		checkEqual("range "+it.name, pairs(rows), it.wanted)
	}
	options := *pegasus.DefaultMultiGetOptions
	options.Reverse, options.MaxFetchCount = true, 3
	rows, all, err := table.MultiGetRangeOpt(soon(), b("range"), b("k010"), b("k020"), &options)
	check("range backwards says that there is more", err == nil && !all, all, err)
	checkEqual("range backwards keeps the last rows, in rising order", pairs(rows), numbered(17, 20))
	rows, all, err = table.MultiGetRange(soon(), b("range"), b("k010"), b("k012"))
	check("range with the default options", err == nil && all && len(rows) == 2, pairs(rows), all, err)
	checkDone("multi del", table.MultiDel(soon(), b("range"), sortKeys))
}

func counters(table pegasus.TableConnector) {
	steps := []struct {
		name         string
		step, wanted int64
	}{
		{"incr of an absent record counts from 0", 5, 5},
		{"incr adds", 37, 42},
		{"incr subtracts", -50, -8},
		{"incr by 0 reads", 0, -8},
	}
	for _, it := range steps {
		value, err := table.Incr(soon(), b("counter"), b("n"), it.step)
		check(it.name, value == it.wanted && err == nil, value, err)
	}
	value, _ := table.Get(soon(), b("counter"), b("n"))
	checkEqual("a counter is stored as decimal text", value, b("-8"))
	checkDone("set", table.Set(soon(), b("counter"), b("text"), b("no number")))
	_, err := table.Incr(refused(), b("counter"), b("text"), 1)
	check("incr of a text is refused", err != nil, "it was accepted")
	checkDone("set", table.Set(soon(), b("counter"), b("full"), b("9223372036854775807")))
	_, err = table.Incr(refused(), b("counter"), b("full"), 1)
	check("incr past the largest number is refused", err != nil, "it was accepted")
	value, _ = table.Get(soon(), b("counter"), b("full"))
	checkEqual("a refused incr changes nothing", value, b("9223372036854775807"))
	checkDone("multi del", table.MultiDel(soon(), b("counter"), keys("n", "text", "full")))
}

func checkAndSet(table pegasus.TableConnector) {
	returning := &pegasus.CheckAndSetOptions{ReturnCheckValue: true}
	cas := func(kind pegasus.CheckType, operand, value string) (*pegasus.CheckAndSetResult, error) {
		return table.CheckAndSet(soon(), b("cas"), b("k"), kind, b(operand), b("k"), b(value), returning)
	}
	steps := []struct {
		name     string
		kind     pegasus.CheckType
		operand  string
		set      string
		succeeds bool
		// What was there before; "-" for nothing.
		before string
	}{
		{"exists, but it does not", pegasus.CheckTypeValueExist, "", "a", false, "-"},
		{"does not exist", pegasus.CheckTypeValueNotExist, "", "apple", true, "-"},
		{"does not exist, but it does", pegasus.CheckTypeValueNotExist, "", "b", false, "apple"},
		{"does not exist or is empty, but it is neither", pegasus.CheckTypeValueNotExistOrEmpty, "", "b", false, "apple"},
		{"exists", pegasus.CheckTypeValueExist, "", "apple", true, "apple"},
		{"is not empty", pegasus.CheckTypeValueNotEmpty, "", "apple", true, "apple"},
		{"begins with", pegasus.CheckTypeMatchPrefix, "app", "apple", true, "apple"},
		{"begins with, but it does not", pegasus.CheckTypeMatchPrefix, "ple", "b", false, "apple"},
		{"ends with", pegasus.CheckTypeMatchPostfix, "ple", "apple", true, "apple"},
		{"contains", pegasus.CheckTypeMatchAnywhere, "ppl", "apple", true, "apple"},
		{"contains, but it does not", pegasus.CheckTypeMatchAnywhere, "x", "b", false, "apple"},
		{"is less, as bytes", pegasus.CheckTypeBytesLess, "b", "apple", true, "apple"},
		{"is less, as bytes, but it is equal", pegasus.CheckTypeBytesLess, "apple", "b", false, "apple"},
		{"is less or equal, as bytes", pegasus.CheckTypeBytesLessOrEqual, "apple", "apple", true, "apple"},
		{"is greater, as bytes", pegasus.CheckTypeBytesGreater, "a", "apple", true, "apple"},
		{"is greater or equal, as bytes", pegasus.CheckTypeBytesGreaterOrEqual, "apple", "apple", true, "apple"},
		{"is equal, as bytes, but it is not", pegasus.CheckTypeBytesEqual, "pear", "b", false, "apple"},
		{"is equal, as bytes", pegasus.CheckTypeBytesEqual, "apple", "10", true, "apple"},
		{"is less, as a number", pegasus.CheckTypeIntLess, "9", "b", false, "10"},
		{"is less or equal, as a number", pegasus.CheckTypeIntLessOrEqual, "10", "10", true, "10"},
		{"is equal, as a number", pegasus.CheckTypeIntEqual, "10", "10", true, "10"},
		{"is greater or equal, as a number", pegasus.CheckTypeIntGreaterOrEqual, "9", "10", true, "10"},
		{"anything", pegasus.CheckTypeNoCheck, "", "", true, "10"},
		{"is not empty, but it is", pegasus.CheckTypeValueNotEmpty, "", "b", false, ""},
		{"does not exist or is empty", pegasus.CheckTypeValueNotExistOrEmpty, "", "end", true, ""},
	}
	for _, it := range steps {
		result, err := cas(it.kind, it.operand, it.set)
		if err != nil {
			check("check and set if it "+it.name, false, err)
			continue
		}
		before := "-"
		if result.CheckValueReturned && result.CheckValueExist {
			before = string(result.CheckValue)
		}
		check("check and set if it "+it.name, result.SetSucceed == it.succeeds && before == it.before, *result)
	}
	value, _ := table.Get(soon(), b("cas"), b("k"))
	checkEqual("check and set leaves the last value that passed", value, b("end"))
	_, err := table.CheckAndSet(refused(), b("cas"), b("k"), pegasus.CheckTypeIntEqual, b("1"), b("k"), b("b"), returning)
	check("a comparison of numbers with a text is refused", err != nil, "it was accepted")

	result, err := table.CheckAndSet(soon(), b("cas"), b("k"), pegasus.CheckTypeValueExist, nil, b("other"), b("set"), nil)
	check("check and set of another sort key", err == nil && result.SetSucceed && !result.CheckValueReturned, result, err)
	value, _ = table.Get(soon(), b("cas"), b("other"))
	checkEqual("check and set wrote the other sort key", value, b("set"))
	mortal := &pegasus.CheckAndSetOptions{SetValueTTLSeconds: 1000}
	_, err = table.CheckAndSet(soon(), b("cas"), b("k"), pegasus.CheckTypeValueExist, nil, b("other"), b("set"), mortal)
	checkDone("check and set with a ttl", err)
	seconds, err := table.TTL(soon(), b("cas"), b("other"))
	check("ttl after check and set", err == nil && seconds >= 990 && seconds <= 1000, seconds, err)
	checkDone("multi del", table.MultiDel(soon(), b("cas"), keys("k", "other")))
}

func expiry(table pegasus.TableConnector) {
	begin := time.Now()
	checkDone("set with a ttl", table.SetTTL(soon(), b("mortal"), b("short"), b("v"), 2*time.Second))
	checkDone("set with a long ttl", table.SetTTL(soon(), b("mortal"), b("long"), b("v"), 1000*time.Second))
	checkDone("multi set with a ttl",
		table.MultiSetOpt(soon(), b("mortal"), keys("m1", "m2"), keys("v", "v"), 2*time.Second))
	seconds, err := table.TTL(soon(), b("mortal"), b("long"))
	check("ttl counts down", err == nil && seconds >= 990 && seconds <= 1000, seconds, err)
	value, err := table.Get(soon(), b("mortal"), b("short"))
	for value != nil && err == nil && time.Since(begin) < 15*time.Second {
		time.Sleep(100 * time.Millisecond)
		value, err = table.Get(soon(), b("mortal"), b("short"))
	}
	check("a record expires", value == nil && err == nil, value, err)
	check("a record does not expire early", time.Since(begin) > 900*time.Millisecond, time.Since(begin))
	time.Sleep(time.Until(begin.Add(3200 * time.Millisecond)))
	exists, err := table.Exist(soon(), b("mortal"), b("short"))
	check("exist of an expired record", !exists && err == nil, exists, err)
	rows, all, err := table.MultiGet(soon(), b("mortal"), nil)
	check("multi get leaves expired records out", err == nil && all, all, err)
	checkEqual("multi get keeps those that live", pairs(rows), []string{"long=v"})
	count, err := table.SortKeyCount(soon(), b("mortal"))
	check("sort key count leaves expired records out", count == 1 && err == nil, count, err)
	checkDone("set without a ttl", table.Set(soon(), b("mortal"), b("long"), b("w")))
	seconds, err = table.TTL(soon(), b("mortal"), b("long"))
	check("set without a ttl takes the ttl away", seconds == -1 && err == nil, seconds, err)
	checkDone("del", table.Del(soon(), b("mortal"), b("long")))
}

// collect gives "hash/sort=value" for every row of a scanner, in its order.
func collect(scanner pegasus.Scanner) ([]string, error) {
	var all []string
	for {
		isDone, hashKey, sortKey, value, err := scanner.Next(soon())
		if err != nil || isDone {
			return all, err
		}
		all = append(all, fmt.Sprintf("%s/%s=%s", hashKey, sortKey, value))
	}
}

func scans(table pegasus.TableConnector) {
	wanted := map[string]bool{}
	for hash := 0; hash < 20; hash++ {
		hashKey := fmt.Sprintf("scan%02d", hash)
		_, err := fill(table, hashKey)
		check("multi set", err == nil, err)
		for _, pair := range numbered(0, 200) {
			wanted[hashKey+"/"+pair] = true
		}
	}
	part := func(low, high int) []string {
		var all []string
		for _, pair := range numbered(low, high) {
			all = append(all, "scan07/"+pair)
		}
		return all
	}
	cases := []struct {
		name, start, stop string
		change            func(*pegasus.ScannerOptions)
		wanted            []string
	}{
		{"in pages of 7", "", "", func(o *pegasus.ScannerOptions) { o.BatchSize = 7 }, part(0, 200)},
		{"includes its start only", "k010", "k020", func(*pegasus.ScannerOptions) {}, part(10, 20)},
		{"with both borders", "k010", "k020", func(o *pegasus.ScannerOptions) { o.StopInclusive = true }, part(10, 21)},
		{"without its borders", "k010", "k020", func(o *pegasus.ScannerOptions) { o.StartInclusive = false }, part(11, 20)},
		{"by prefix", "", "", func(o *pegasus.ScannerOptions) {
			o.SortKeyFilter = pegasus.Filter{Type: pegasus.FilterTypeMatchPrefix, Pattern: b("k01")}
		}, part(10, 20)},
		{"by postfix", "", "", func(o *pegasus.ScannerOptions) {
			o.SortKeyFilter = pegasus.Filter{Type: pegasus.FilterTypeMatchPostfix, Pattern: b("k150")}
		}, part(150, 151)},
	}
	for _, it := range cases {
		options := pegasus.NewScanOptions()
		it.change(options)
		scanner, err := table.GetScanner(soon(), b("scan07"), b(it.start), b(it.stop), options)
		if err != nil {
			check("scan "+it.name, false, err)
			continue
		}
		rows, err := collect(scanner)
		checkDone("scan "+it.name+" ends well", err)
		checkEqual("scan "+it.name, rows, it.wanted)
	}

	for _, it := range []struct{ count, batch int }{{1, 1000}, {3, 37}, {1000, 10}} {
		name := fmt.Sprintf("full scan with at most %d scanners in pages of %d", it.count, it.batch)
		options := pegasus.NewScanOptions()
		options.BatchSize = it.batch
		found, isGood := fullScan(table, name, it.count, options)
		check(name+" finds every record once", isGood && reflect.DeepEqual(found, wanted), len(found), " of ", len(wanted))
	}
	options := pegasus.NewScanOptions()
	options.HashKeyFilter = pegasus.Filter{Type: pegasus.FilterTypeMatchPostfix, Pattern: b("n07")}
	found, isGood := fullScan(table, "full scan by hash key", 4, options)
	check("full scan by hash key finds its records", isGood && len(found) == 200, len(found))
	options = pegasus.NewScanOptions()
	options.NoValue = true
	found, isGood = fullScan(table, "full scan without values", 4, options)
	check("full scan without values finds the keys", isGood && len(found) == 4000 && found["scan07/k007="], len(found))

	options = pegasus.NewScanOptions()
	options.BatchSize = 7
	scanner, err := table.GetScanner(soon(), b("scan07"), nil, nil, options)
	checkDone("open a scan to be left early", err)
	if err == nil {
		_, _, _, _, err = scanner.Next(soon())
		checkDone("first row of a scan to be left early", err)
		// Waits for a reply that never comes, by the client's design: its error says nothing.
		_ = scanner.Close()
	}
	value, err := table.Get(soon(), b("scan07"), b("k001"))
	check("a closed scan leaves the connection usable", err == nil && string(value) == "v001", value, err)

	for hash := 0; hash < 20; hash++ {
		var sortKeys [][]byte
		for number := 0; number < 200; number++ {
			sortKeys = append(sortKeys, b(fmt.Sprintf("k%03d", number)))
		}
		err := table.MultiDel(soon(), b(fmt.Sprintf("scan%02d", hash)), sortKeys)
		check("multi del", err == nil, err)
	}
}

// fullScan gives the rows that all scanners found together, and whether none was found twice and no error came.
func fullScan(table pegasus.TableConnector, name string, count int, options *pegasus.ScannerOptions) (map[string]bool, bool) {
	found := map[string]bool{}
	scanners, err := table.GetUnorderedScanners(soon(), count, options)
	if err != nil {
		check(name+" opens", false, err)
		return found, false
	}
	total := 0
	for _, scanner := range scanners {
		rows, err := collect(scanner)
		if err != nil {
			check(name+" ends well", false, err)
			return found, false
		}
		total += len(rows)
		for _, row := range rows {
			found[row] = true
		}
	}
	return found, total == len(found)
}

func concurrency(table pegasus.TableConnector) {
	const writers, writes = 32, 50
	results := make(chan error, writers)
	for writer := 0; writer < writers; writer++ {
		go func(hashKey string) {
			for number := 0; number < writes; number++ {
				if _, err := table.Incr(soon(), b("shared"), b("n"), 1); err != nil {
					results <- err
					return
				}
				if err := table.Set(soon(), b(hashKey), b("k"), b(fmt.Sprint(number))); err != nil {
					results <- err
					return
				}
				if value, err := table.Get(soon(), b(hashKey), b("k")); err != nil || string(value) != fmt.Sprint(number) {
					results <- fmt.Errorf("read %q after %d was written: %v", value, number, err)
					return
				}
			}
			results <- table.Del(soon(), b(hashKey), b("k"))
		}(fmt.Sprintf("writer%02d", writer))
	}
	var first error
	for writer := 0; writer < writers; writer++ {
		if err := <-results; err != nil && first == nil {
			first = err
		}
	}
	checkDone("32 writers at once read what they wrote", first)
	value, err := table.Incr(soon(), b("shared"), b("n"), 0)
	check("no concurrent incr is lost or doubled", value == writers*writes && err == nil, value, err)
	checkDone("del", table.Del(soon(), b("shared"), b("n")))
}

// untilDone repeats an operation as a caller of this client has to while leaders change.
func untilDone(operation func(context.Context) error) error {
	end := time.Now().Add(recovery)
	for {
		ctx, cancel := context.WithTimeout(context.Background(), attempt)
		err := operation(ctx)
		cancel()
		if err == nil || time.Now().After(end) {
			return err
		}
	}
}

func leaderChange(table pegasus.TableConnector, config pegasus.Config, name, kill, restart string) {
	const hashKeys = 40
	writeAndRead := func(table pegasus.TableConnector, suffix string, older ...string) error {
		for number := 0; number < hashKeys; number++ {
			hashKey := b(fmt.Sprintf("fault%02d", number))
			err := untilDone(func(ctx context.Context) error { return table.Set(ctx, hashKey, b(suffix), b("v-"+suffix)) })
			if err != nil {
				return fmt.Errorf("set %s: %w", hashKey, err)
			}
			for _, written := range append(older, suffix) {
				err := untilDone(func(ctx context.Context) error {
					value, err := table.Get(ctx, hashKey, b(written))
					if err == nil && string(value) != "v-"+written {
						err = fmt.Errorf("acknowledged, but it reads %q", value)
					}
					return err
				})
				if err != nil {
					return fmt.Errorf("get %s %s: %w", hashKey, written, err)
				}
			}
		}
		return nil
	}
	shell := func(command string) error { return exec.Command("sh", "-c", command).Run() }

	checkDone("writes and reads before a node is killed", writeAndRead(table, "before"))
	checkDone("kill a node", shell(kill))
	begin := time.Now()
	checkDone("writes and reads while a node is down", writeAndRead(table, "while-down", "before"))
	fmt.Printf("        go: served again by the other nodes after %.1f s\n", time.Since(begin).Seconds())
	checkDone("start the node again", shell(restart))
	// A client of its own: this one does not dial a node again within a minute of its last attempt.
	fresh := pegasus.NewClient(config)
	again, err := fresh.OpenTable(soon(), name)
	checkDone("open the table after the node came back", err)
	if err == nil {
		checkDone("writes and reads after the node came back", writeAndRead(again, "after", "before", "while-down"))
	}
	checkDone("close the second client", fresh.Close())
}
